"""A paired computer that answers nonsense: the laptop's turns go on, and nothing there fails."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvchat.chat.events import ReadAheadProgress
from kvchat.chat.record.messages import NEW_CHAT_ID, Message
from kvchat.chat.turn.receipts import receipt_details, receipt_line, receipt_sentence
from kvchat.engine.api import transport
from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.wire import MAX_MODELS, ChatMessage, parse_models
from kvchat.engine_host.paired_computer import (
    PairedComputer,
    PairedComputerStore,
    PairingFailed,
    computer_address,
    pair,
)
from kvchat.errors import KvchatError
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.system.certificate import server_context
from kvchat.system.paths import resolve_paths
from kvchat.text.reasons import ReasonCode
from tests.devices.conftest import PROGRAM_KEY
from tests.engine.waiting import until
from tests.gateway.servers import RunningGateway
from tests.running import ask, opened

KEY = "kv-" + "k" * 43
DEEP = b'{"a":' * 20_000
ODD: tuple[Any, ...] = (None, -1, -(2**70), 2**70, 1e308, "9" * 4000, "\ud800", [], {}, [[]], True)


@dataclass
class HostileBox:
    """Passes requests on to a real gateway and replaces what `answers` names."""

    gateway: RunningGateway
    answers: dict[str, bytes] = field(default_factory=dict)  # bodies by path
    headers: dict[str, str] = field(default_factory=dict)  # of replies
    receipt: bytes = b""  # last line of replies
    saving: list[tuple[str, str]] = field(default_factory=list)  # paths of requests, with X-Kvchat-Save

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target = head.split()[:2]
            headers = {name.lower(): value for name, value in re.findall(r"(?m)^([\w-]+): (.*)\r$", head)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            status, more, content = await self._answer(method, target, headers, body)
            lines = [f"HTTP/1.1 {status} OK", f"content-length: {len(content)}", *more, "", ""]
            writer.write("\r\n".join(lines).encode("latin-1") + content)
            await writer.drain()

    async def _answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[str], bytes]:
        path = target.partition("?")[0]
        self.saving.append((path, headers.get("x-kvchat-save", "")))
        if path in self.answers:
            return 200, [], self.answers[path]
        names = ("x-kvchat-chat", "content-encoding")
        passed = {name: headers[name] for name in names if name in headers}
        if headers.get("authorization") == f"Bearer {KEY}":
            passed["authorization"] = f"Bearer {PROGRAM_KEY}"
        answer = await self.gateway.client.request(method, target, content=body, headers=passed)
        content, more = answer.content, [f"{name}: {value}" for name, value in self.headers.items()]
        if path == "/v1/chat/completions" and self.receipt:
            content = content[: content.rindex(b": kvchat ")] + b": kvchat " + self.receipt + b"\n\n"
        return answer.status_code, more, content


@pytest.fixture
async def hostile(box: RunningGateway, tmp_path: Path) -> AsyncIterator[tuple[HostileBox, PairedComputer]]:
    file = tmp_path / "hostile.pem"
    context, _fingerprint = server_context(file)
    between = HostileBox(box)
    async with await asyncio.start_server(between.serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        text = file.read_text("ascii")
        certificate = text[text.index("-----BEGIN CERTIFICATE") :]
        yield between, PairedComputer(f"https://127.0.0.1:{port}", KEY, certificate, "gpubox", "1")


@pytest.fixture
async def laptop(hostile: tuple[HostileBox, PairedComputer], tmp_path: Path) -> AsyncIterator[Runtime]:
    PairedComputerStore(resolve_paths({"KVCHAT_HOME": str(tmp_path / "laptop")}).ensure()).save(hostile[1])
    async with opened(tmp_path / "laptop", Settings(engine_url=hostile[1].url, model_titles=False)) as runtime:
        await runtime.engine.ready()
        yield runtime


def check_receipt(reply: Message) -> None:
    assert reply.content
    assert reply.receipt is not None
    assert receipt_line(reply.receipt)
    assert receipt_sentence(reply.receipt)
    assert receipt_details(reply.receipt)


async def test_odd_receipts_do_not_stop_a_turn(hostile: tuple[HostileBox, PairedComputer], laptop: Runtime) -> None:
    between, chat = hostile[0], (await laptop.chat.new_conversation()).id
    names = ("source", "found", "restore-ms", "restore-bytes", "miss-code", "ahead", "ahead-ms", "cached")
    receipts = [json.dumps(dict.fromkeys(names, odd)).encode() for odd in ODD]
    receipts += [b"", b"5", b"[]", b"{", DEEP, b'{"found": 1e999, "restore-ms": NaN}', b"\xff"]
    receipts += [json.dumps({"source": "disk", "found": 5, "miss-code": code.value}).encode() for code in ReasonCode][
        ::7
    ]
    heads: list[dict[str, str]] = [
        {f"x-kvchat-{name}": value for name in names}
        for value in ("-5", "9" * 5_000, "1e999", "warm", "disk", "nobody-knows", "\xb2", "begins-differently")
    ]
    for number in range(max(len(receipts), len(heads))):
        between.receipt = receipts[number % len(receipts)]
        between.headers = {"x-kvchat-source": "cold", **heads[number % len(heads)]}
        check_receipt(await ask(laptop, chat, f"Message {number}"))
    between.receipt, between.headers = b"", {}
    check_receipt(await ask(laptop, chat, "Goodbye"))
    assert await laptop.chat.forecasts.forecast_chats({chat: None})


async def test_chat_that_is_never_kept_here_is_not_saved_there(
    hostile: tuple[HostileBox, PairedComputer], laptop: Runtime
) -> None:
    """Also if that was chosen while the box was not in use, so that it does not know."""
    between, asked = hostile[0], "/v1/chat/completions"
    chat, other = [(await laptop.chat.new_conversation()).id for _ in range(2)]
    await asyncio.to_thread(laptop.save_points.store.inventory.set_never_save, chat, True)
    await ask(laptop, chat, "Hello")
    await ask(laptop, other, "Hello")
    assert [save for path, save in between.saving if path == asked] == ["never", ""]
    between.saving.clear()
    laptop.chat.read_ahead.select(chat)
    await until(lambda: "/kvchat/prepare" in dict(between.saving))
    assert dict(between.saving)["/kvchat/prepare"] == "never"


async def test_every_reason_of_a_box_can_be_displayed(
    hostile: tuple[HostileBox, PairedComputer], laptop: Runtime
) -> None:
    between, chat = hostile[0], (await laptop.chat.new_conversation()).id
    await ask(laptop, chat, "Hello")
    await ask(laptop, chat, "And now?")
    shown = set()
    for code in ReasonCode:
        between.receipt = json.dumps({"source": "cold", "found": 10**6, "miss-code": code.value}).encode()
        reply = await laptop.chat.retry(chat)
        check_receipt(reply)
        shown.add(reply.receipt.miss_reason)
    assert len(shown) > 20


NONSENSE = (b"", b"5", b"[]", b"{", DEEP, b"\xff", b'"text"', b"null")


async def test_odd_memory_lists_and_forecasts(
    hostile: tuple[HostileBox, PairedComputer], laptop: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    between, chat = hostile[0], (await laptop.chat.new_conversation()).id
    await ask(laptop, chat, "Hello")
    fields = ("chat", "bytes", "save_points", "tokens", "source", "last_used_at", "keep")
    lists = [json.dumps({"chats": odd}).encode() for odd in ODD]
    lists += [
        json.dumps({"chats": [dict.fromkeys(fields, odd), {"chat": chat, "last_used_at": odd}]}).encode() for odd in ODD
    ]
    for body in (*NONSENSE, *lists):
        between.answers = {"/kvchat/chats": body}
        usage = await laptop.save_points.usage()
        assert all(entry.bytes >= 0 for entry in usage.conversations)
        await laptop.chat.forecasts.forecast_chats({chat: None})
    counts = [json.dumps(dict.fromkeys(("source", "ready", "total", "bytes"), odd)).encode() for odd in ODD]
    counts.append(b'{"source": "disk", "ready": 9, "total": 5, "bytes": -1}')
    for body in (*NONSENSE, *counts):
        between.answers = {"/kvchat/forecast": body}
        forecast = await laptop.chat.forecasts.forecast_message(chat, "And now?")
        assert forecast is None or forecast.tokens_to_process >= 0
    monkeypatch.setattr(transport, "_MAX_LINE", 10_000)
    engine = (await laptop.engine.ready()).engine.for_chat(chat)
    shown: list[tuple[int, int]] = []
    for body in (
        *NONSENSE,
        *counts,
        b"\n" * 10_000,
        b'{"ready": 1, "total": 2}\n' * 1_000 + b"[" * 9_000,
        b"x" * 500_000,
    ):
        between.answers = {"/kvchat/prepare": body, "/kvchat/chats": body}
        with contextlib.suppress(EngineError):
            await engine.prepare([ChatMessage("user", "Hello")], lambda *done: shown.append(done), read=True)
    assert all(min(done) >= 0 for done in shown)
    between.answers = {}
    check_receipt(await ask(laptop, chat, "Goodbye"))


async def test_preparation_that_stays_unfinished_is_not_shown_forever(
    hostile: tuple[HostileBox, PairedComputer], laptop: Runtime
) -> None:
    shown: list[ReadAheadProgress] = []
    laptop.events.subscribe(lambda event: shown.append(event) if isinstance(event, ReadAheadProgress) else None)
    hostile[0].answers["/kvchat/prepare"] = b'{"ready": 100, "total": 200}\n'
    laptop.chat.read_ahead.set_draft(NEW_CHAT_ID, "Hello " * 100, ())
    await until(lambda: len(shown) > 1 and shown[-1].done_tokens == shown[-1].total)
    assert any(event.done_tokens < event.total for event in shown)


async def test_message_does_not_wait_for_a_preparation_there(laptop: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def prepare(*_: object, **__: object) -> tuple[int, int]:
        begun.set()
        await asyncio.Event().wait()
        return 0, 0

    monkeypatch.setattr(LlamaServerClient, "prepare", prepare)
    chat = (await laptop.chat.new_conversation()).id
    laptop.chat.read_ahead.set_draft(chat, "Hello " * 100, ())
    async with asyncio.timeout(60):
        await begun.wait()
        assert await laptop.chat.send(chat, "Hello " * 100)


async def test_odd_answers_to_pairing(hostile: tuple[HostileBox, PairedComputer]) -> None:
    between, there = hostile
    bodies = [json.dumps({"session": odd, "message": odd, "proof": odd, "key": odd}).encode() for odd in ODD]
    for body in (*NONSENSE, *bodies, b'{"message": "' + b"41" * 20_000 + b'"}', b" " * 3_000_000):
        between.answers = {"/kvchat/pair": body}
        with pytest.raises(KvchatError):
            await pair(there.url, "123456")


async def test_a_box_that_never_ends_its_answer(
    hostile: tuple[HostileBox, PairedComputer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvchat.engine_host.paired_computer._TIMEOUT_S", 0.5)

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)

    context, _fingerprint = server_context(Path(hostile[0].gateway.runtime.paths.config) / "other.pem")
    async with await asyncio.start_server(trickle, "127.0.0.1", 0, ssl=context) as server:
        with pytest.raises(PairingFailed):
            await pair(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "123456")


def test_names_of_models_are_bounded_and_no_paths() -> None:
    names = [
        "Qwen3 8B",
        "gemma3:4b",
        "/etc/x.gguf",
        "\\\\host\\x.gguf",
        "C:\\x.gguf",
        "a\nb",
        "x" * 1_000_000,
        7,
        "Qwen3 8B",
    ]
    assert parse_models({"data": [{"id": name} for name in names]}) == ("Qwen3 8B", "gemma3:4b")
    assert len(parse_models({"data": [{"id": f"model {number}"} for number in range(10_000)]})) == MAX_MODELS


@pytest.mark.parametrize(
    ("typed", "address"),
    [
        ("gpubox", "https://gpubox:8738"),
        (" 192.168.1.5:99 ", "https://192.168.1.5:99"),
        ("http://gpubox:99/path", "https://gpubox:99"),
        ("https://[fd00::1]", "https://[fd00::1]:8738"),
    ],
)
def test_paired_computers_are_never_reached_without_tls(typed: str, address: str) -> None:
    assert computer_address(typed) == address
