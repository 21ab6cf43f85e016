"""Connections by the thousand that do not mean it: `python -m tests.soak.crowd URL COUNT`."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress

import httpx2

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
RUDE = (
    b"",
    b"\x16\x03\x01\x02\x00\x01",
    HEAD,
    HEAD + b"Content-Length: 100\r\n\r\n{",
    HEAD + b"Content-Length: 3\r\n\r\n{]}",
    HEAD + b"Content-Length: 99999999999\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n{",
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
)


async def crowd(url: str, count: int, at_once: int = 300) -> Counter[str]:
    """So many connections, many at a time, that say half a head; and how those fare who mean it meanwhile."""
    host, port = url.removeprefix("http://").split(":")
    fared: Counter[str] = Counter()

    async def come() -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            fared["came"] += 1
            with suppress(ConnectionError):
                writer.write(HEAD[: fared["came"] % len(HEAD)])
                await writer.drain()
            await asyncio.sleep(0.5)
            writer.transport.abort()

    for _ in range(0, count, at_once):
        coming = [asyncio.create_task(come()) for _ in range(at_once)]
        async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            try:
                fared[str((await http.get("/health")).status_code)] += 1
            except httpx2.HTTPError:  # one too many for the moment
                fared["turned away"] += 1
        await asyncio.gather(*coming)
    return fared


async def heavy(url: str, count: int) -> Counter[str]:
    """Bodies of megabytes, one after the other: of JSON that is none, and of JSON that says nothing."""
    fared: Counter[str] = Counter()
    async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        for number in range(count):
            body = b'{"messages": "' + b"x" * 4_000_000 + (b'"}' if number % 2 else b"")
            with suppress(httpx2.HTTPError):
                fared[f"heavy {(await http.post('/v1/chat/completions', content=body)).status_code}"] += 1
    return fared


async def _all(url: str, count: int) -> Counter[str]:
    return sum(await asyncio.gather(crowd(url, count), heavy(url, 40)), Counter())


if __name__ == "__main__":
    print(dict(asyncio.run(_all(sys.argv[1], int(sys.argv[2])))))
