"""`kvchat serve` in its own process."""

import configparser
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.home import Home

KVCHAT = (sys.executable, "-m", "kvchat")

# Like Qwen's, which many models with tool calls use.
TEMPLATE = r"""
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '# Tools\n\nFunction signatures within <tools></tools> XML tags:\n<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{{- '\n</tools>\n\nFor each call, return a json object with its name and arguments within <tool_call></tool_call>:' }}
{{- '\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- if call.function %}{%- set call = call.function %}{%- endif %}
{{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments | tojson }}{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>tool\n' + message.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""


@dataclass
class Serving:
    process: subprocess.Popen[str]
    url: str
    errors: Path

    def get(self, path: str) -> Any:
        """Request a path with the owner's API key."""
        owner = self.errors.parent / "data" / "owner.json"
        key = json.loads(owner.read_text("utf-8"))["api_key"] if owner.exists() else ""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}{path}", headers=headers), timeout=60) as answer:
            return json.load(answer)

    def requests(self) -> list[dict[str, Any]]:
        """Return the finished requests, oldest first, once nothing runs and everything is saved."""
        while (status := self.get("/kvchat/requests"))["under_way"] or any(slot["busy"] for slot in status["slots"]):
            time.sleep(0.05)
        return list(reversed(status["last"]))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait()


@contextlib.contextmanager
def serving(home: Home, *arguments: str, port: int, program: Sequence[str | Path] = KVCHAT) -> Iterator[Serving]:
    """Start the systemd unit's command; terminate it at the end of the block like systemd."""
    home.folder.mkdir(parents=True, exist_ok=True)
    errors = home.folder / "serve.errors"
    with (
        errors.open("ab") as stderr,
        subprocess.Popen(
            [*program, *_exec_start()[1:], "--port", str(port), *arguments],
            env=os.environ | {"KVCHAT_HOME": str(home.folder)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            assert first.startswith("ready http://"), errors.read_text("utf-8")
            yield Serving(process, first.split()[1], errors)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def _exec_start() -> list[str]:
    unit = configparser.ConfigParser()
    unit.read_string((Path(__file__).parents[2] / "packaging" / "kvchat.service").read_text("utf-8"))
    return shlex.split(unit["Service"]["ExecStart"])
