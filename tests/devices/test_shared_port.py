"""Hostile devices, networks and files, while the shared port goes on answering paired devices."""

import asyncio
import contextlib
import json
import re
import secrets
import ssl
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from kvchat.engine_host.paired_computer import pair
from kvchat.errors import KvchatError
from kvchat.gateway import server as listening
from kvchat.gateway.devices.api import MAX_AT_ONCE
from kvchat.gateway.devices.device_list import MAX_DEVICES, Devices
from kvchat.settings import Settings
from kvchat.sharing_service import SharingService
from kvchat.system.certificate import fingerprint, server_context, unverified_context
from kvchat.system.pairing import LOCK_S, MAX_WRONG_CODES, CodeEnterer, CodeHolder, PairingLocked, WrongCode
from kvchat.system.paths import resolve_paths
from tests.devices.conftest import PROGRAM_KEY, address_of, client_of, paired, sharing_of
from tests.engine.waiting import until
from tests.engine_fixtures import FakeEngine
from tests.gateway.servers import WORDS, RunningGateway, chat_body, running_gateway
from tests.gateway.test_attacks import CROWD

HEX = re.compile("[0-9a-f]+")


def stranger(box: RunningGateway) -> httpx2.AsyncClient:
    url = f"https://{address_of(box)}"
    some = httpx2.Limits(max_connections=40)  # at once
    return httpx2.AsyncClient(base_url=url, verify=unverified_context(), timeout=60, trust_env=False, limits=some)


async def test_thousand_wrong_codes_lock_pairing_and_cost_little(box: RunningGateway) -> None:
    codes, now = sharing_of(box)._codes, [0.0]
    codes.clock = lambda: now[0]
    right = sharing_of(box).show_code()
    wrong = f"{(int(right) + 1) % 1_000_000:06d}"
    device = CodeEnterer(wrong, "thief", codes.certificate)
    first = {"message": device.message.hex()}
    async with stranger(box) as client:
        crowd = [client.post("/kvchat/pair", json=first) for _ in range(500)]
        answers = await asyncio.gather(*crowd) + [await client.post("/kvchat/pair", json=first) for _ in range(500)]
        statuses = [answer.status_code for answer in answers]
        assert statuses.count(200) == MAX_WRONG_CODES, "these had a chance to guess"
        assert statuses.count(429) == 1000 - MAX_WRONG_CODES
        for answer in answers:
            if answer.status_code == 200:
                body = answer.json()
                proof = CodeEnterer(wrong, "thief", codes.certificate).prove(bytes.fromhex(body["message"]))
                guess = {"session": body["session"], "name": "thief", "proof": proof}
                assert (await client.post("/kvchat/pair", json=guess)).status_code == 403
    assert len(codes._sessions) <= MAX_WRONG_CODES
    assert not sharing_of(box).devices
    with pytest.raises(PairingLocked):
        sharing_of(box).show_code()
    with pytest.raises(PairingLocked):
        await pair(address_of(box), right)
    now[0] = LOCK_S
    with pytest.raises(WrongCode):
        await pair(address_of(box), right)  # a locked code does not return
    assert (await paired(box)).key


async def test_messages_and_proofs_cannot_be_replayed(box: RunningGateway) -> None:
    codes = sharing_of(box)._codes
    device = CodeEnterer(sharing_of(box).show_code(), "laptop", codes.certificate)
    async with stranger(box) as client:
        answer = (await client.post("/kvchat/pair", json={"message": device.message.hex()})).json()
        proof = {
            "session": answer["session"],
            "name": "laptop",
            "proof": device.prove(bytes.fromhex(answer["message"])),
        }
        again = (await client.post("/kvchat/pair", json={"message": device.message.hex()})).json()
        for wrong in (
            proof | {"session": again["session"]},  # of the same message, in another session
            proof | {"name": "another"},
            proof | {"proof": ""},
        ):
            assert (await client.post("/kvchat/pair", json=wrong)).status_code == 403
        # Each session can be tried once, so that the true proof comes too late here.
        assert (await client.post("/kvchat/pair", json=proof)).status_code == 403
        assert not sharing_of(box).devices
        assert (await pair(address_of(box), codes.code)).key
        replayed = {"message": device.message.hex()}
        assert (await client.post("/kvchat/pair", json=replayed)).status_code == 403, "the code was used"
    assert len(sharing_of(box).devices) == 1


async def test_somebody_who_relays_the_pairing_learns_no_key(box: RunningGateway, tmp_path: Path) -> None:
    """The relay shows the device a certificate of its own, and passes on everything else."""
    relay_tls, _fingerprint = server_context(tmp_path / "relay.pem")
    passed_on = bytearray()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = sharing_of(box).port
        there, here = await asyncio.open_connection("127.0.0.1", port, ssl=unverified_context())

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError), contextlib.closing(target):
                while data := await source.read(65_536):
                    passed_on.extend(data)
                    target.write(data)

        await asyncio.gather(copy(reader, here), copy(there, writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=relay_tls) as between:
        with pytest.raises(WrongCode):
            await pair(f"127.0.0.1:{between.sockets[0].getsockname()[1]}", sharing_of(box).show_code())
    assert b"message" in passed_on
    assert b"kv-" not in passed_on
    assert not sharing_of(box).devices
    codes = sharing_of(box)._codes
    assert (await pair(address_of(box), codes.code)).key, "the right code still works"


BODIES: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"{",
    "a list": b"[]",
    "not hexadecimal": b'{"message": "xyz"}',
    "not hexadecimal, and no text": b'{"message": 5.5}',
    "nonsense": json.dumps({"message": secrets.token_bytes(33).hex()}).encode(),
    "a short message": b'{"message": "41"}',
    "its own side": json.dumps({"message": (b"B" + secrets.token_bytes(32)).hex()}).encode(),
    "a null": b'{"message": null}',
    "an object": b'{"message": {"a": []}}',
    "much": b'{"message": "' + b"41" * 100_000 + b'"}',
    "deep": b'{"message": ' + b"[" * 4_000 + b"]" * 4_000 + b"}",
    "deeper than it closes": b"[" * 9_000,
    "a long number": b'{"message": ' + b"9" * 9_000 + b"}",
    "lone surrogates": b'{"session": "\\ud800", "name": "\\ud800", "proof": "\\ud800"}',
    "wrong types": b'{"session": [], "name": {}, "proof": 1e999}',
    "not UTF-8": b'{"session": "\xff"}',
}


async def test_malformed_pairing_requests(box: RunningGateway, capfd: pytest.CaptureFixture[str]) -> None:
    async with stranger(box) as client:
        for name, body in BODIES.items():
            sharing_of(box).show_code()
            answer = await client.post("/kvchat/pair", content=body)
            assert answer.status_code in (400, 403, 413), (name, answer.text)
            sharing_of(box)._codes._wrong_codes = 0  # type: ignore[union-attr]
        for chunked in (b"[" * 9_000, b"x" * 20_000):

            async def pieces(content: bytes = chunked) -> AsyncIterator[bytes]:
                for at in range(0, len(content), 1000):
                    yield content[at : at + 1000]

            assert (await client.post("/kvchat/pair", content=pieces())).status_code in (400, 413)
    assert (await paired(box)).key
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_code_expires_and_devices_are_limited(box: RunningGateway) -> None:
    codes, now = sharing_of(box)._codes, [0.0]
    codes.clock = lambda: now[0]
    code = sharing_of(box).show_code()
    now[0] = 601.0
    with pytest.raises(WrongCode):
        await pair(address_of(box), code)
    devices = sharing_of(box)._devices
    for number in range(MAX_DEVICES):
        devices.add(f"device {number}")
    with pytest.raises(KvchatError, match="could not be paired") as refused:
        await paired(box)
    assert "Too many devices" in refused.value.detail
    sharing_of(box).remove(devices.all[0].id)
    assert (await pair(address_of(box), codes.code)).key, "the code was not used up"


async def test_only_current_tls_is_accepted(box: RunningGateway, capfd: pytest.CaptureFixture[str]) -> None:
    device = await paired(box)
    old = unverified_context()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    port = sharing_of(box).port
    with pytest.raises(OSError):  # noqa: PT011 - the system's or OpenSSL's
        await asyncio.open_connection("127.0.0.1", port, ssl=old)
    for data in (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 500, b"\0" * 70_000):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            writer.write(data)
            async with asyncio.timeout(60):
                assert b"HTTP" not in await reader.read()
    async with client_of(device) as client:
        assert (await client.get("/v1/models")).status_code == 200
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"])
async def test_connections_without_a_handshake_keep_nobody_out(box: RunningGateway, said: bytes) -> None:
    device = await paired(box)
    program = [sys.executable, "-c", CROWD, str(sharing_of(box).port), "1000"]
    crowd = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
    crowd.stdin.write(said.hex().encode() + b"\n")
    assert (await crowd.stdout.readline()).split() == [b"all", b"are", b"there"]
    listener = box.gateway._shared
    assert len(listener._handshakes) <= listening.MAX_HANDSHAKES
    for _ in range(3):
        async with client_of(device) as client:
            assert (await client.post("/v1/chat/completions", json=chat_body("Hello"))).status_code == 200
    crowd.stdin.close()
    await crowd.wait()


async def test_keys_are_valid_on_their_own_listener_only(box: RunningGateway) -> None:
    device = await paired(box)
    for key, status in ((device.key, 401), (PROGRAM_KEY, 200)):
        answer = await box.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == status
    keys = {PROGRAM_KEY: 401, "none": 401, device.key + "x": 401, "kv-\xff": 401, device.key: 200}
    async with client_of(device) as client:
        for key, status in keys.items():
            headers = {"authorization": f"Bearer {key}".encode("latin-1")}
            for path in ("/v1/models", "/kvchat/chats", "/kvchat/requests", "/health", "/props"):
                assert (await client.get(path, headers=headers)).status_code == status, (key, path)
        answer = await client.post("/kvchat/pair", json={})
        assert answer.status_code == 403, "a key does not pair"
        assert (await client.get("/metrics")).status_code == 404
        del client.headers["authorization"]
        assert (await client.get("/health")).status_code == 200
    pairing = await box.client.post("/kvchat/pair", json={}, headers={"authorization": f"Bearer {PROGRAM_KEY}"})
    assert pairing.status_code in (404, 405), "devices pair on the shared port only"


async def begin_answer(box: RunningGateway, fake_engine: FakeEngine) -> asyncio.Task[httpx2.Response]:
    """Have a program of the owner answered until FAKE_HOLD_DURING is None, so that nothing is prepared."""
    ours = {"authorization": f"Bearer {PROGRAM_KEY}"}
    await box.chat("Hello", headers=ours)
    fake_engine.set(FAKE_HOLD_DURING="stream")
    answering = asyncio.create_task(box.chat("Hello", headers=ours, stream=True))
    await until(lambda: box.runtime.api_server.active_requests)
    return answering


async def test_preparations_of_a_device_are_limited(box: RunningGateway, fake_engine: FakeEngine) -> None:
    """They wait while somebody is answered, and end with their connections."""
    device = await paired(box)
    answering = await begin_answer(box, fake_engine)
    async with client_of(device) as client:
        async with contextlib.AsyncExitStack() as stack:
            statuses = []
            for number in range(MAX_AT_ONCE + 3):
                request = client.stream("POST", "/kvchat/prepare?read=1", json=chat_body(f"Draft {number}"))
                statuses.append((await stack.enter_async_context(request)).status_code)
        assert statuses == [200] * MAX_AT_ONCE + [429] * 3
        while (await client.post("/kvchat/forecast", json=chat_body("Draft"))).status_code != 200:
            pass  # once the closed connections are noticed
    fake_engine.set(FAKE_HOLD_DURING=None)
    await answering
    await box.settled()


async def test_nothing_is_prepared_for_a_removed_device(box: RunningGateway, fake_engine: FakeEngine) -> None:
    device = await paired(box)
    answering = await begin_answer(box, fake_engine)
    body = chat_body("Draft about the river. " * 200)
    async with client_of(device) as client, client.stream("POST", "/kvchat/prepare?read=1", json=body) as preparing:
        sharing_of(box).remove(device.device)
        fake_engine.set(FAKE_HOLD_DURING=None)
        await answering
        assert await preparing.aread() == b""
        assert (await client.get("/v1/models")).status_code == 401
    await box.settled()


async def test_devices_and_programs_share_no_system_prompt(box: RunningGateway) -> None:
    """Not even the chats of one device, all with its own key, make it available to others."""
    system = {"role": "system", "content": WORDS}

    async def found(client: httpx2.AsyncClient, chat: str, text: str, **more: str) -> int:
        body = chat_body(text)
        body["messages"].insert(0, system)
        answer = await client.post("/v1/chat/completions", json=body, headers={"x-kvchat-chat": chat, **more})
        await box.settled()
        return int(answer.headers["x-kvchat-found"])

    few = len(WORDS) // 2
    async with client_of(await paired(box)) as laptop, client_of(await paired(box)) as phone:
        assert await found(laptop, "a", "Mine") < few
        assert await found(laptop, "b", "Another") > few, "it may use its own"
        assert await found(phone, "a", "Mine") < few
        program = {"authorization": f"Bearer {PROGRAM_KEY}"}
        assert await found(box.client, "", "Mine", **program) < few
        assert await found(box.client, "", "Another", **program) > few
        third = await paired(box)
        async with client_of(third) as tablet:
            assert await found(tablet, "c", "Mine") < few
            listed = (await tablet.get("/kvchat/chats")).json()
            assert listed["bytes"] == sum(chat["bytes"] for chat in listed["chats"]), "others' blocks are not visible"


async def test_odd_chat_names_are_refused(box: RunningGateway, fake_engine: FakeEngine) -> None:
    device = await paired(box)
    names = ("..", "../@x", "a/b", "a" * 65, "a b", "é", "%2e%2e", "@x", "a\tb", "a;b", "*")
    async with client_of(device) as client:
        for name in names:
            headers = {"x-kvchat-chat": name.encode("latin-1")}
            for path in ("/v1/chat/completions", "/kvchat/forecast", "/kvchat/prepare"):
                assert (await client.post(path, json=chat_body("Hello"), headers=headers)).status_code == 400, name
        for path in ("..", "%2e%2e", "..%2f@x", "%2e%2e%2f", "a%2fb", "%00", "%ff", "a" * 65, "*", "@x", "%40x", ""):
            url = httpx2.URL(device.url).copy_with(raw_path=b"/kvchat/chats/" + path.encode())
            assert (await client.put(url, json={"keep": "always"})).status_code in (307, 400, 404, 405), path
            assert (await client.delete(url)).status_code in (307, 400, 404, 405), path
        for body in (b"{}", b"[]", b"{", b'{"keep": ["always"]}', b'{"keep": {}}', b'{"keep": "ALWAYS"}'):
            assert (await client.put("/kvchat/chats/mine", content=body)).status_code == 400, body
        assert (await client.put("/kvchat/chats/mine", json={"keep": "always"})).status_code == 200
        assert (await client.delete("/kvchat/chats/unknown")).status_code == 200


LISTS = (
    *(b"", b"{", b"5", b'"text"', b"[5]", b"[{}]", b"[" * 50_000, b"\xff\xfe"),
    b'[{"id": "a", "name": "b", "key_hash": [], "paired_at": 0}]',
    b'[{"id": "a", "name": 5, "key_hash": "c", "paired_at": "x"}]',
)


@pytest.mark.parametrize("text", LISTS)
async def test_damaged_device_list_is_reported_and_kept(tmp_path: Path, settings: Settings, text: bytes) -> None:
    paths = resolve_paths({"KVCHAT_HOME": str(tmp_path / "home")}).ensure()
    paths.config.mkdir(parents=True, exist_ok=True)
    (paths.config / "devices.json").write_bytes(text)
    service = SharingService(paths, lambda: settings, lambda title, detail: None)
    with pytest.raises(KvchatError, match="could not be read") as error:
        await service.load()
    assert "devices.json" in error.value.detail
    assert (paths.config / "devices.json").read_bytes() == text


def test_device_list_survives_and_holds_no_keys(tmp_path: Path) -> None:
    devices = Devices(tmp_path / "devices.json")
    device, key = devices.add("\u202egpu\nbox\ud800 " + "x" * 200)
    devices.write()
    again = Devices(tmp_path / "devices.json")
    again.load()
    assert again.program_of(key) == device.program
    assert key not in (tmp_path / "devices.json").read_text("utf-8")
    assert device.name.startswith("gpu box x")
    assert len(device.name) <= 100


@pytest.mark.parametrize("kept", [0, 100, 400])
async def test_damaged_certificate_is_reported_and_kept(tmp_path: Path, settings: Settings, kept: int) -> None:
    home = tmp_path / "home"
    file = resolve_paths({"KVCHAT_HOME": str(home)}).config / "certificate.pem"
    server_context(file)
    text = file.read_bytes()[:kept]
    file.write_bytes(text)
    told: list[str] = []
    async with running_gateway_or_refusal(home, settings, told):
        pass
    assert any("certificate of this computer cannot be used" in line for line in told), told
    assert file.read_bytes() == text


@contextlib.asynccontextmanager
async def running_gateway_or_refusal(home: Path, settings: Settings, told: list[str]) -> AsyncIterator[None]:
    try:
        async with running_gateway(home, settings):
            yield
    except KvchatError as error:
        told.append(error.title)
        yield


def test_fingerprint_is_of_the_first_certificate(tmp_path: Path) -> None:
    _context, one = server_context(tmp_path / "one.pem")
    _context, again = server_context(tmp_path / "one.pem")
    _context, other = server_context(tmp_path / "other.pem")
    assert one == again != other
    assert HEX.fullmatch(one)
    with pytest.raises(ValueError, match="PEM"):
        fingerprint("nothing")


async def test_the_device_list_is_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow earlier write would bring back a device that was removed meanwhile."""
    sharing = SharingService(
        resolve_paths({"KVCHAT_HOME": str(tmp_path)}).ensure(), Settings, lambda title, detail: None
    )
    await sharing.load()
    steps: list[str] = []

    def slow_write(devices: Devices) -> None:
        steps.append("begin")
        time.sleep(0.05)
        steps.append("end")

    monkeypatch.setattr(Devices, "write", slow_write)
    for _ in range(3):
        sharing._save_soon()
    await sharing.wait_until_saved()
    assert steps == 3 * ["begin", "end"]


def test_a_session_ends_with_its_code() -> None:
    now = [0.0]
    holder = CodeHolder("fingerprint", lambda: now[0])
    enterer = CodeEnterer(holder.show_code(), "laptop", "fingerprint")
    session, answer = holder.answer(enterer.message)
    proof = enterer.prove(answer)
    now[0] = 86_400.0
    with pytest.raises(WrongCode):
        holder.accept(session, "laptop", proof)
