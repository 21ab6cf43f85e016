"""Thousands of useless connections: `python -m tests.soak.crowd URL COUNT`."""

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


async def crowd(url: str, count: int, parallel: int = 300) -> Counter[str]:
    """Open connections that send half a request head; return the outcomes of these and of proper requests."""
    host, port = url.removeprefix("http://").split(":")
    results: Counter[str] = Counter()

    async def connect() -> None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            results["connected"] += 1
            with suppress(ConnectionError):
                writer.write(HEAD[: results["connected"] % len(HEAD)])
                await writer.drain()
            await asyncio.sleep(0.5)
            writer.transport.abort()

    for _ in range(0, count, parallel):
        tasks = [asyncio.create_task(connect()) for _ in range(parallel)]
        async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            try:
                results[str((await http.get("/health")).status_code)] += 1
            except httpx2.HTTPError:  # too many at the moment
                results["rejected"] += 1
        await asyncio.gather(*tasks)
    return results


async def heavy(url: str, count: int) -> Counter[str]:
    """Send bodies of megabytes one after the other: invalid and useless JSON."""
    results: Counter[str] = Counter()
    async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        for number in range(count):
            body = b'{"messages": "' + b"x" * 4_000_000 + (b'"}' if number % 2 else b"")
            with suppress(httpx2.HTTPError):
                results[f"heavy {(await http.post('/v1/chat/completions', content=body)).status_code}"] += 1
    return results


async def _all(url: str, count: int) -> Counter[str]:
    return sum(await asyncio.gather(crowd(url, count), heavy(url, 40)), Counter())


if __name__ == "__main__":
    print(dict(asyncio.run(_all(sys.argv[1], int(sys.argv[2])))))
