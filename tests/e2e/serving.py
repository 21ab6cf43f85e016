"""`kvchat serve` in a process of its own."""

from __future__ import annotations

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

# In the manner of Qwen's, which many models that call tools have.
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
        asked = urllib.request.Request(f"{self.url}{path}", headers=self._as_owner())
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    def _as_owner(self) -> dict[str, str]:
        told = self.errors.parent / "data" / "owner.json"
        key = json.loads(told.read_text("utf-8"))["api_key"] if told.exists() else ""
        return {"authorization": f"Bearer {key}"} if key else {}

    def requests(self) -> list[dict[str, Any]]:
        """Those that are over, oldest first, once nothing is under way and what they left is saved."""
        while (told := self.get("/kvchat/requests"))["under_way"] or any(one["busy"] for one in told["slots"]):
            time.sleep(0.05)
        return list(reversed(told["last"]))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait()


@contextlib.contextmanager
def serving(home: Home, *arguments: str, port: int, program: Sequence[str | Path] = KVCHAT) -> Iterator[Serving]:
    """Begun by what the systemd unit runs, and ended at the latest when the block ends, as systemd ends it."""
    home.folder.mkdir(parents=True, exist_ok=True)
    errors = home.folder / "serve.errors"
    with (
        errors.open("ab") as told,
        subprocess.Popen(
            [*home.prefix, *program, *_exec_start()[1:], "--port", str(port), *arguments],
            env=os.environ | {"KVCHAT_HOME": str(home.folder)},
            stdout=subprocess.PIPE,
            stderr=told,
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
