"""A stand-in for llama-server: a real child process that speaks its protocol, needs no model, and fails on request.

It takes llama-server's flags, checks the API key, keeps slots with a token cache (so `cache_n` is earned), and writes
slot files with real headers and rows. Text costs one token per UTF-8 byte; the template is ChatML.

Faults are switched on by environment variables or, at any moment and also for a running process, by `switches.json`
in the folder FAKE_STATE (`fake_engine.set(FAKE_…=…)` in tests/engine_fixtures.py). "N times" is counted in that
folder, over all processes.

At the start
  FAKE_EXIT_AT_START=CODE:MESSAGE   print MESSAGE and exit with CODE (negative: die of that signal)
  FAKE_PORT_TAKEN_TIMES=N           the first N starts fail as if the port were taken
  FAKE_STRANGER_TIMES=N             the first N starts require no key, like another program's server
  FAKE_SLOW_LOAD=SECONDS            load for so long, printing dots
  FAKE_MOST_CONTEXT=TOKENS          a larger --ctx-size runs out of memory, as logged by llama.cpp
  FAKE_MOST_LAYERS=N                --fit puts so many of its 5 layers on the GPU (default: all)
  FAKE_GPU_FULL=1|crash             a load that uses the GPU runs out of memory, or its driver crashes
  FAKE_KV_MIB_PER_1K=N              log a KV buffer of this size per 1024 tokens, and other buffers
  FAKE_NO_GPU=1                     --list-devices lists none
  FAKE_VERSION=NUMBER               build number in --version (default: 0, unknown)
  FAKE_LACKS="--cors-origins …"     unknown options
While serving; PHASE is begin (of a prompt), prefill, stream, end (before [DONE]), save, restore or erase; load only
for FAKE_HANG_DURING and FAKE_HOLD_DURING
  FAKE_DIE_DURING=PHASE             die in that phase, after half the reply or half the file
  FAKE_DIE_ON=TEXT                  die at each chat whose prompt contains this, after PHASE begin
  FAKE_DIE_TIMES=N                  … N times in all (default 1)
  FAKE_DIE_HOW=abort|kill|exit|rpc  GGML_ASSERT and SIGABRT (default), SIGKILL, exit code 1, or for a lost RPC server
  FAKE_HANG_DURING=PHASE            never answer in that phase
  FAKE_HOLD_DURING=PHASE            wait in that phase until this is switched off; loop: GET /metrics
  FAKE_BREAK_STREAM=MESSAGE         send an error event in the middle of the reply
  FAKE_LOSE_GPU=MESSAGE             processes started earlier answer 500 with MESSAGE; /health still reports ok
  FAKE_HOLLOW_RESTORE=1             restore answers 200, and the next request finds nothing cached
  FAKE_EXACT_ONLY=1                 like hybrid models: the cache helps only if the prompt extends it exactly
  FAKE_REFUSE_RESTORE=1             restore answers 400
  FAKE_EMPTY_SAVE=1                 save answers 200 and writes an empty slot
  FAKE_TRUNCATE_SAVE=1              save answers 200 and writes half the file
  FAKE_SEES=1                       report vision, but be too old to count picture tokens
Pace and content
  FAKE_TOKEN_DELAY=SECONDS          wait before each word of the reply
  FAKE_SAVE_DELAY=SECONDS           wait before each tenth of a slot file
  FAKE_BATCH_DELAY=SECONDS          wait before each batch of the prompt
  FAKE_REPLY=TEXT                   the reply (default: an echo of the last user message)
  FAKE_THINKING=TEXT                sent as reasoning_content before the reply
  FAKE_CALLS=JSON                   one list of calls ({"name", "arguments"}) per reply, from the first
  FAKE_LACKS_TOOLS=1                report a chat template without tools
  FAKE_OMITS_TOOLS=1                render no tools if the tool choice is "none"
  FAKE_PAGE=HTML                    serve a web page and, like the real one, no other file without the key
  FAKE_ECHO=1                       a continued reply is repeated from its beginning, as by b11434
Every request is recorded in FAKE_STATE/requests.jsonl: method, path and body.

The quick tests start it some hundred times: it imports little (`http.server` takes longer than all the rest), and is
itself imported (tests/engine_fixtures.py), so that Python caches its bytecode.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socketserver
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SPECIAL = {"<|im_start|>": 2, "<|im_end|>": 3}
BOS = 1
FIRST_BYTE = 10  # token of byte 0
ROW_BYTES = 32
PAGE = {"/": "text/html; charset=utf-8", "/_app/immutable/bundle.js": "text/javascript", "/sw.js": "text/javascript"}
STATE = Path(os.environ["FAKE_STATE"]) if "FAKE_STATE" in os.environ else None
COUNTING = threading.Lock()


def switch(name: str) -> str:
    while STATE is not None and (STATE / "switches.json").exists():
        try:
            return str(json.loads((STATE / "switches.json").read_text("utf-8")).get(name, os.environ.get(name, "")))
        except PermissionError:  # on Windows, while it is replaced
            time.sleep(0.001)
    return os.environ.get(name, "")


def has_turn_left(name: str, limit: str) -> bool:
    """Count one more use of `name`; True if that is within `limit`."""
    assert STATE is not None, "counting needs FAKE_STATE"
    file = STATE / f"count-{name}"
    with COUNTING:
        done = int(file.read_text()) if file.exists() else 0
        file.write_text(str(done + 1))
    return done < int(limit)


def record(line: dict[str, Any], name: str) -> None:
    if STATE is not None:
        with (STATE / name).open("ab", buffering=0) as file:  # in one piece: several requests come at once
            file.write(json.dumps(line).encode() + b"\n")


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def die() -> None:
    how = switch("FAKE_DIE_HOW") or "abort"
    if how == "exit":
        os._exit(1)
    if how == "abort":
        log("fake.cpp:1: GGML_ASSERT(false) failed")
    if how == "rpc":
        log("/src/ggml-rpc/ggml-rpc.cpp:569: Remote RPC server crashed or returned malformed response")
    die_of(9 if how == "kill" else signal.SIGABRT)
    threading.Event().wait()


def die_of(number: int) -> None:
    if sys.platform == "win32":
        os._exit(0xC0000005 - 2**32)  # an access violation
    os.kill(os.getpid(), number)


STARTED_AFTER_THE_LOSS = bool(switch("FAKE_LOSE_GPU"))


def check_gpu() -> None:
    """Refuse to compute if the GPU was lost in this process's time."""
    if switch("FAKE_LOSE_GPU") and not STARTED_AFTER_THE_LOSS:
        raise Refusal(500, switch("FAKE_LOSE_GPU"), "server_error")


def phase(name: str) -> None:
    """Die, hang or wait if a switch says so for this phase."""
    if switch("FAKE_HANG_DURING") == name:
        threading.Event().wait()
    while switch("FAKE_HOLD_DURING") == name:
        time.sleep(0.005)
    if switch("FAKE_DIE_DURING") == name and has_turn_left("deaths", switch("FAKE_DIE_TIMES") or "1"):
        die()


def tokenize(text: str, add_special: bool) -> list[int]:
    tokens = [BOS] if add_special else []
    for part in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text):
        tokens += [SPECIAL[part]] if part in SPECIAL else [FIRST_BYTE + byte for byte in part.encode()]
    return tokens


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """Render ChatML. Like llama-server, leave a final assistant message open, to be continued."""
    if tools:
        return f"<|im_start|>tools\n{json.dumps(tools)}<|im_end|>\n{render(messages)}"
    closed = messages[:-1] if messages and messages[-1]["role"] == "assistant" else messages
    text = "".join(f"<|im_start|>{m['role']}\n{text_of(m['content'])}{calls_of(m)}<|im_end|>\n" for m in closed)
    return text + "<|im_start|>assistant\n" + (messages[-1]["content"] if closed is not messages else "")


def calls_of(message: dict[str, Any]) -> str:
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())]
    return "".join(f"\n<tool_call>{call}</tool_call>" for call in calls)


def text_of(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "<__media__>") for part in content)


def slot_file(tokens: list[int]) -> bytes:
    """Return a slot file of state version 4, with one plain attention cache of one layer."""
    packed = [-1, 1, len(tokens), *tokens, 0]
    head = struct.pack("<III", 0x67677371, 4, len(packed)) + struct.pack(f"<{len(packed)}i", *packed)
    cells = b"".join(struct.pack("<iIi", position, 1, 0) for position in range(len(tokens)))
    if not tokens:
        return head + struct.pack("<II", 1, 0)
    rows = b"".join(struct.pack("<II", token & 0xFFFFFFFF, p) * (ROW_BYTES // 8) for p, token in enumerate(tokens))
    layer = struct.pack("<iQ", 1, ROW_BYTES) + rows
    return head + struct.pack("<II", 1, len(tokens)) + cells + struct.pack("<IIII", 0, 1, 0, 0) + layer + layer


def complete(stream: Iterator[dict[str, Any] | str]) -> dict[str, Any]:
    """Return the response to a request that is not streamed."""
    events = [event for event in stream if isinstance(event, dict)]
    if refused := next((event["error"] for event in events if "error" in event), None):
        raise Refusal(*refused.values())
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "timings": events[-1]["timings"]}


class Refusal(Exception):
    def __init__(self, code: int, message: str, kind: str) -> None:
        super().__init__(message)
        self.body = {"error": {"code": code, "message": message, "type": kind}}
        self.code = code


class Slot:
    """A slot's tokens and lock. All slots share the context (`--kv-unified`)."""

    def __init__(self, context_size: int, batch_size: int, folder: Path | None, all: list[Slot]) -> None:
        self.context_size, self.batch_size, self.folder = context_size, batch_size, folder
        self.tokens: list[int] = []
        self.lock = threading.Lock()
        self.all = all
        self.hollow = False
        self.failed = False  # another slot's request was too large for all

    def cached(self, prompt: list[int]) -> int:
        """Return the number of cached tokens of the prompt. The last token is always reprocessed for its logits."""
        common = next((i for i, (a, b) in enumerate(zip(self.tokens, prompt, strict=False)) if a != b), None)
        common = min(len(self.tokens), len(prompt)) if common is None else common
        useless = self.hollow or (switch("FAKE_EXACT_ONLY") and common < len(self.tokens))
        self.hollow = False
        return 0 if useless else max(0, min(common, len(prompt) - 1))

    def read_prompt(self, prompt: list[int]) -> Iterator[dict[str, Any]]:
        """Process the prompt batch by batch; yield progress."""
        if not prompt:
            raise Refusal(400, "Prompt is empty", "invalid_request_error")
        if len(prompt) >= self.context_size:
            message = f"request ({len(prompt)} tokens) exceeds the available context size ({self.context_size} tokens)"
            raise Refusal(400, message, "exceed_context_size_error")
        start, cache = time.monotonic(), self.cached(prompt)
        self.tokens = prompt[:cache]
        progress = {"total": len(prompt), "cache": cache, "processed": cache, "time_ms": 0.0}
        phase("begin")
        yield dict(progress)
        phase("prefill")
        while len(self.tokens) < len(prompt):
            time.sleep(float(switch("FAKE_BATCH_DELAY") or 0))
            self.find_room(min(len(self.tokens) + self.batch_size, len(prompt)))
            self.tokens = prompt[: len(self.tokens) + self.batch_size]
            passed = 1000 * (time.monotonic() - start)
            yield progress | {"processed": len(self.tokens), "time_ms": passed}

    def find_room(self, tokens: int) -> None:
        """Like b11434, purge idle slots in order; if that is not enough, fail all running requests."""
        for other in [*self.all, None]:
            if sum(len(slot.tokens) for slot in self.all if slot is not self) + tokens <= self.context_size:
                return
            if other is not None and other is not self and not other.lock.locked():
                other.tokens = []
        for slot in self.all:
            slot.tokens = []
            slot.failed = slot is not self and slot.lock.locked()
        raise Refusal(500, "Context size has been exceeded.", "server_error")

    def path(self, filename: str) -> Path:
        if self.folder is None:
            message = "This server does not support slots action. Start it with `--slot-save-path`"
            raise Refusal(501, message, "not_supported_error")
        if not filename or "/" in filename or filename.startswith("."):
            raise Refusal(400, "Invalid filename", "invalid_request_error")
        return self.folder / filename

    def save(self, filename: str) -> dict[str, Any]:
        path, tokens = self.path(filename), [] if switch("FAKE_EMPTY_SAVE") else self.tokens
        data = slot_file(tokens)
        try:
            with path.open("wb") as file:
                for tenth in range(10 if switch("FAKE_SAVE_DELAY") else 0):
                    time.sleep(float(switch("FAKE_SAVE_DELAY") or 0))
                    file.write(data[len(data) // 2 * tenth // 10 : len(data) // 2 * (tenth + 1) // 10])
                    file.flush()
                file.seek(0)
                file.write(data[: len(data) // 2])
                file.flush()
                phase("save")
                file.write(b"" if switch("FAKE_TRUNCATE_SAVE") else data[len(data) // 2 :])
        except OSError as error:
            raise Refusal(500, "Unable to save slot", "server_error") from error
        return {"n_saved": len(tokens), "n_written": len(data), "timings": {"save_ms": 1.5}}

    def restore(self, filename: str) -> dict[str, Any]:
        path = self.path(filename)
        phase("restore")
        self.tokens = []
        data = path.read_bytes() if path.exists() else b""
        message = "Unable to restore slot: No available space in KV cache or invalid slot save file"
        refusal = Refusal(400, message, "invalid_request_error")
        if switch("FAKE_REFUSE_RESTORE") or data[:8] != slot_file([])[:8]:
            raise refusal
        count = struct.unpack_from("<I", data, 8)[0]
        packed = list(struct.unpack_from(f"<{count}i", data, 12)) if len(data) >= 12 + 4 * count else []
        tokens = packed[3:-1]
        if not packed or len(data) != len(slot_file(tokens)):
            die()  # like the real one, in GGML_ASSERT
        if len(tokens) > self.context_size:
            message = "Unable to restore slot: Restored prompt does not fit in the slot context"
            raise Refusal(400, message, "invalid_request_error")
        if sum(len(slot.tokens) for slot in self.all) + len(tokens) > self.context_size:
            raise refusal
        self.tokens, self.hollow = tokens, bool(switch("FAKE_HOLLOW_RESTORE"))
        return {"n_restored": len(tokens), "n_read": len(data), "timings": {"restore_ms": 0.7}}


class Handler(socketserver.StreamRequestHandler):
    server: FakeServer

    def handle(self) -> None:
        method, _, rest = self.rfile.readline().decode("latin-1").partition(" ")
        self.path = rest.partition(" ")[0]
        self.headers: dict[str, str] = {}
        while line := self.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        if method == "GET":
            self.get()
        elif method == "POST":
            self.post()

    def get(self) -> None:
        if self.path == "/health":
            self.answer(200, {"status": "ok"}) if self.server.loaded else self.answer_loading()
        elif switch("FAKE_PAGE") and self.path in PAGE:
            import gzip  # slow

            data = gzip.compress(switch("FAKE_PAGE").encode() if self.path == "/" else b"start()")
            extra = f'Content-Encoding: gzip\r\nETag: "{len(data)}"\r\nContent-Length: {len(data)}'
            self.send_head(200, PAGE[self.path], extra)
            self.wfile.write(data)
        elif self.is_authorized() and self.path == "/metrics":
            phase("loop")
            self.answer(200, [])
        elif self.is_authorized():
            record({"method": "GET", "path": self.path, "body": {}}, "requests.jsonl")
            self.answer(200, {"/props": self.server.props, "/slots": self.server.states}.get(self.path, list)())

    def post(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if not self.is_authorized():
            return
        record({"method": "POST", "path": self.path, "body": body}, "requests.jsonl")
        slots = self.server.slots
        try:
            if self.path == "/apply-template":
                omits = body.get("tool_choice") == "none" and switch("FAKE_OMITS_TOOLS")
                self.answer(200, {"prompt": render(body["messages"], None if omits else body.get("tools"))})
            elif self.path == "/tokenize":
                self.answer(200, {"tokens": tokenize(body["content"], body.get("add_special", False))})
            elif self.path == "/v1/chat/completions":
                with (slot := slots[body.get("id_slot", 0)]).lock:
                    answer = self.chat(slot, body)
                    self.stream(answer) if body.get("stream") else self.answer(200, complete(answer))
            elif self.path == "/completion":
                with (slot := slots[body.get("id_slot", 0)]).lock:
                    self.stream(self.completion(slot, body))
            elif match := re.fullmatch(r"/slots/(\d+)\?action=(\w+)", self.path):
                with (slot := slots[int(match[1])]).lock:
                    self.answer(200, {"id_slot": int(match[1]), **self.slot_action(slot, match[2], body)})
            else:
                raise Refusal(404, "File Not Found", "not_found_error")
        except Refusal as refusal:
            self.answer(refusal.code, refusal.body)
        except ConnectionError:
            pass

    def is_authorized(self) -> bool:
        if not self.server.loaded:
            self.answer_loading()
        elif self.server.key and self.headers.get("authorization") != f"Bearer {self.server.key}":
            self.answer(401, Refusal(401, "Invalid API Key", "authentication_error").body)
        else:
            return True
        return False

    def answer_loading(self) -> None:
        self.answer(503, Refusal(503, "Loading model", "unavailable_error").body)

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_head(status, "application/json; charset=utf-8", f"Content-Length: {len(data)}")
        self.wfile.write(data)

    def stream(self, events: Iterator[dict[str, Any] | str]) -> None:
        first = next(events)  # a refusal comes before the headers
        self.send_head(200, "text/event-stream", "Transfer-Encoding: chunked")
        self.send_event(first)
        for event in events:
            self.send_event(event)
        self.wfile.write(b"0\r\n\r\n")

    def send_head(self, status: int, kind: str, length: str) -> None:
        head = f"HTTP/1.1 {status} Fake\r\nContent-Type: {kind}\r\n{length}\r\nConnection: close\r\n\r\n"
        self.wfile.write(head.encode("latin-1"))

    def send_event(self, event: dict[str, Any] | str) -> None:
        data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def chat(self, slot: Slot, body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        messages = body["messages"]
        prompt = tokenize(render(messages, body.get("tools")), True)
        check_gpu()
        start, cache = time.monotonic(), None
        for progress in slot.read_prompt(prompt):
            if switch("FAKE_DIE_ON") and switch("FAKE_DIE_ON") in render(messages):
                die()
            cache = progress["cache"] if cache is None else cache
            yield {"choices": [{"delta": {"content": None}, "finish_reason": None}], "prompt_progress": progress}
        prompt_ms = 1000 * (time.monotonic() - start)
        questions = [m["content"] for m in messages if m["role"] == "user"]
        reply = (switch("FAKE_REPLY") or f"You said: {questions[-1] if questions else ''}").encode()
        room = slot.context_size - len(prompt)
        limit = min(body.get("max_tokens", room), room)
        begun = messages[-1]["content"].encode() if messages[-1]["role"] == "assistant" else b""
        reply = reply.removeprefix(begun)
        limited = reply[:limit]
        if switch("FAKE_THINKING"):
            yield {"choices": [{"delta": {"reasoning_content": switch("FAKE_THINKING")}, "finish_reason": None}]}
        sent, start = 0, time.monotonic()
        words = re.findall(rb"\s*\S+|\s+", limited)
        for index, word in enumerate(words):
            time.sleep(float(switch("FAKE_TOKEN_DELAY") or 0))
            if index >= len(words) // 2:
                phase("stream")
                if switch("FAKE_BREAK_STREAM"):
                    yield Refusal(500, switch("FAKE_BREAK_STREAM"), "server_error").body
                    return
            sent += len(word)
            try:
                if slot.failed:
                    slot.failed = False
                    raise Refusal(500, "Context size has been exceeded.", "server_error")
                slot.find_room(len(prompt) + sent)
            except Refusal as refusal:
                yield refusal.body
                return
            slot.tokens = [*prompt, *(FIRST_BYTE + byte for byte in limited[: sent - 1])]  # the last is not read yet
            echo = begun if index == 0 and switch("FAKE_ECHO") else b""
            delta = {"content": (echo + word).decode("utf-8", "ignore")}
            timings = self.timings(prompt, cache or 0, prompt_ms, sent, start)
            yield {"choices": [{"delta": delta, "finish_reason": None}], "timings": timings}
        reason = "stop" if limited == reply else "length"
        rounds = sum(message["role"] == "assistant" for message in messages)
        planned = json.loads(switch("FAKE_CALLS") or "[]") if body.get("tools") else []
        for index, call in enumerate(planned[rounds] if rounds < len(planned) else ()):
            reason, arguments = "tool_calls", call["arguments"]
            head = {"name": call["name"], "arguments": arguments[:3]}
            first = {"index": index, "id": f"call-{rounds}-{index}", "type": "function", "function": head}
            for piece in (first, {"index": index, "function": {"arguments": arguments[3:]}}):
                yield {"choices": [{"delta": {"tool_calls": [piece]}, "finish_reason": None}]}
        timings = self.timings(prompt, cache or 0, prompt_ms, sent, start)
        yield {"choices": [{"delta": {}, "finish_reason": reason}], "timings": timings}
        phase("end")
        yield "[DONE]"

    @staticmethod
    def timings(prompt: list[int], cache: int, prompt_ms: float, predicted: int, start: float) -> dict[str, Any]:
        spent = {"prompt_ms": prompt_ms, "predicted_ms": 1000 * (time.monotonic() - start)}
        return {"cache_n": cache, "prompt_n": len(prompt) - cache, "predicted_n": predicted, **spent}

    @staticmethod
    def completion(slot: Slot, body: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
        if body.get("n_predict") != 0:
            raise Refusal(501, "the fake completes nothing: n_predict must be 0", "not_supported_error")
        check_gpu()
        cache = None
        for progress in slot.read_prompt(list(body["prompt"])):
            cache = progress["cache"] if cache is None else cache
            yield {"content": "", "stop": False, "prompt_progress": progress}
        timings = Handler.timings(body["prompt"], cache or 0, 1.0, 0, time.monotonic())
        yield {"content": "", "stop": True, "timings": timings}

    @staticmethod
    def slot_action(slot: Slot, action: str, body: dict[str, Any]) -> dict[str, Any]:
        if action == "erase":
            phase("erase")
            erased, slot.tokens = len(slot.tokens), []
            return {"n_erased": erased}
        result = slot.save(body["filename"]) if action == "save" else slot.restore(body["filename"])
        return {"filename": body["filename"], **result}


class FakeServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, flags: argparse.Namespace, key: str) -> None:
        self.slots: list[Slot] = []
        for _ in range(flags.parallel):
            self.slots.append(Slot(flags.ctx_size, flags.batch_size, flags.slot_save_path, self.slots))
        self.flags, self.key, self.loaded = flags, key, False
        super().__init__((flags.host, flags.port), Handler)

    def states(self) -> list[dict[str, Any]]:
        state = {"n_ctx": self.flags.ctx_size}
        return [
            {"id": number, "is_processing": slot.lock.locked(), "n_prompt_tokens": len(slot.tokens), **state}
            for number, slot in enumerate(self.slots)
        ]

    def props(self) -> dict[str, Any]:
        return {
            "default_generation_settings": {"n_ctx": self.flags.ctx_size},
            "total_slots": self.flags.parallel,
            "model_path": str(self.flags.model),
            "build_info": "b0-fake",
            "chat_template": "chatml",
            "eos_token": "<|im_end|>",
            "chat_template_caps": {"supports_tools": not switch("FAKE_LACKS_TOOLS")},
            "modalities": {"vision": bool(self.flags.mmproj and switch("FAKE_SEES"))},
        }


def parse_flags(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llama-server", add_help=False, allow_abbrev=False)
    for flag in ("--help", "--version", "--list-devices"):
        parser.add_argument(flag, action="store_true")
    for flag in ("--model", "--slot-save-path", "--mmproj"):
        parser.add_argument(flag, type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--ctx-size", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--api-key", default=os.environ.get("LLAMA_API_KEY", ""))
    lacking = switch("FAKE_LACKS").split()
    parser.add_argument("--parallel", type=int, default=1)
    valued = (
        "-ctk -ctv --cache-ram --threads --cors-origins --rpc --lora --fit --fit-target --n-gpu-layers --ubatch-size"
    )
    for flag in (*valued.split(), "--verbosity", "--ctx-checkpoints"):
        if flag not in lacking:
            parser.add_argument(flag, type=int if flag in ("--n-gpu-layers", "--verbosity") else str)
    for flag in ("--kv-unified", "--metrics", "--jinja", "--mlock", "--embeddings"):
        if flag not in lacking:
            parser.add_argument(flag, action="store_true")
    flags, unknown = parser.parse_known_args(arguments)
    if unknown:
        log(f"error: invalid argument: {unknown[0]}")
        sys.exit(1)
    if flags.help:
        for action in parser._actions:
            value = "" if isinstance(action, argparse._StoreTrueAction) else " VALUE"
            print(f"{', '.join(action.option_strings) + value:<40}what it is for")
        print(" - 4: trace (more info)")
        sys.exit(0)
    return flags


def fail_at_start(flags: argparse.Namespace) -> None:
    if switch("FAKE_EXIT_AT_START"):
        code, _, message = switch("FAKE_EXIT_AT_START").partition(":")
        log(message)
        if int(code) < 0:
            die_of(-int(code))
        os._exit(int(code))
    if has_turn_left("ports-taken", switch("FAKE_PORT_TAKEN_TIMES") or "0"):
        place = f"hostname: {flags.host}, port: {flags.port}"
        log(f"0.00.002.800 E srv         start: couldn't bind HTTP server socket, {place}")
        os._exit(1)


def allocate(flags: argparse.Namespace) -> None:
    """Log the allocated memory, and die if it is not enough. The lines are those of b11434."""
    kv_mib = int(switch("FAKE_KV_MIB_PER_1K") or 0) * flags.ctx_size / 1024
    layers = 0 if flags.n_gpu_layers == 0 or switch("FAKE_NO_GPU") else min(5, int(switch("FAKE_MOST_LAYERS") or 5))
    place = "FAKE0" if layers else "CPU"
    if layers and switch("FAKE_GPU_FULL") == "crash":
        die_of(signal.SIGABRT)
    too_much = flags.ctx_size > int(switch("FAKE_MOST_CONTEXT") or sys.maxsize)
    if too_much or (layers and switch("FAKE_GPU_FULL")):
        log(f"0.00.228.366 E ggml_backend_buft_alloc_buffer_n_default: failed to allocate {place} buffer of size 377")
        log("0.00.228.491 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv")
        os._exit(1)
    if kv_mib and (getattr(flags, "verbosity", None) or 0) >= 4:
        if not switch("FAKE_NO_GPU"):
            log(f"0.00.260.000 I load_tensors: offloaded {layers}/5 layers to GPU")
        log(f"0.00.260.001 I load_tensors: {place:>12} model buffer size = {100:8.2f} MiB")
        log(f"0.00.260.003 I llama_kv_cache: {place:>10} KV buffer size = {kv_mib:8.2f} MiB")
        log(f"0.00.260.004 I sched_reserve: {place:>10} compute buffer size = {50:8.2f} MiB")


def load(server: FakeServer) -> None:
    deadline = time.monotonic() + float(switch("FAKE_SLOW_LOAD") or 0)
    while time.monotonic() < deadline:
        print(".", end="", file=sys.stderr, flush=True)
        time.sleep(0.02)
    phase("load")
    server.loaded = True
    log(f"0.00.000.001 I srv  llama_server: listening on http://127.0.0.1:{server.server_address[1]}")


def main(arguments: list[str]) -> int:
    flags = parse_flags(arguments)
    if flags.version or flags.list_devices:
        version = f"version: {switch('FAKE_VERSION') or 0} (fake)"
        devices = "" if switch("FAKE_NO_GPU") else "\n  FAKE0: Fake GPU (1024 MiB, 512 MiB free)"
        log(version if flags.version else f"Available devices:{devices}")
        return 0
    if hasattr(os, "setsid"):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its crashes are not worth a core file
    llama = sorted(name for name in os.environ if name.upper().startswith("LLAMA_"))
    record({"pid": os.getpid(), "arguments": arguments, "environment": llama}, "launches.jsonl")
    fail_at_start(flags)
    allocate(flags)
    stranger = has_turn_left("strangers", switch("FAKE_STRANGER_TIMES") or "0")
    server = FakeServer(flags, "" if stranger else flags.api_key)
    threading.Thread(target=load, args=(server,), daemon=True).start()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
