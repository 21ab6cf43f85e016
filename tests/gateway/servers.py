"""A complete kvchat without its window, with any engine and an open API server, and a client for it."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from kvchat.gateway.gateway import Gateway
from kvchat.gateway.records import RequestLog, RequestRecord
from kvchat.runtime import Runtime
from kvchat.settings import Settings
from kvchat.system.owner import InstanceLock
from tests.running import opened

WORDS = "Tell me about the river and the garden, please, and leave nothing out. " * 3


@dataclass
class RunningGateway:
    runtime: Runtime
    client: httpx2.AsyncClient
    url: str

    async def chat(self, *texts: str, headers: Mapping[str, str] | None = None, **options: Any) -> httpx2.Response:
        """Send a chat; every other text is the assistant's."""
        return await self.client.post("/v1/chat/completions", json=chat_body(*texts, **options), headers=headers)

    async def settled(self) -> None:
        """Wait until all answers are saved."""
        await self.runtime.api_server.wait_until_idle()

    @property
    def gateway(self) -> Gateway:
        return self.runtime.api_server.gateway

    @property
    def log(self) -> RequestLog:
        return self.gateway.log

    @property
    def last(self) -> RequestRecord:
        return self.log.recent[-1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def reply_in(answer: httpx2.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def chat_body(*texts: str, **options: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": messages, "max_tokens": 12, "temperature": 0} | options


@contextlib.asynccontextmanager
async def running_gateway(
    home: Path, settings: Settings, keys: Mapping[str, str] | None = None, **headers: str
) -> AsyncIterator[RunningGateway]:
    async with opened(home, settings) as runtime:
        ownership = InstanceLock(runtime.paths.data, "kvchat serve")
        assert ownership.claim()
        ownership.listen(lambda connection: connection.close())
        url = await runtime.api_server.open("127.0.0.1", 0, keys or {})
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=120, trust_env=False) as client:
            yield RunningGateway(runtime, client, url)
        ownership.release()


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def receipt_in(text: str) -> dict[str, Any]:
    """Parse the receipt in the last comment of a stream."""
    comments = [line for line in text.splitlines() if line.startswith(": kvchat ")]
    assert text.rstrip().endswith(comments[-1])
    receipt: dict[str, Any] = json.loads(comments[-1].removeprefix(": kvchat "))
    return receipt
