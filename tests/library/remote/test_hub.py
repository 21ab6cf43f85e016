"""Hugging Face, against a fake server, and the storage of the access token."""

import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail, null

from kvchat.errors import KvchatError
from kvchat.library.remote.hub import (
    EXTERNAL_LOCATION,
    MAX_RESPONSE_BYTES,
    TOKEN_FILE_NAME,
    AccessNeeded,
    AccessToken,
    Hub,
    HubError,
    TokenStore,
    Unreachable,
    parse_repository,
)
from kvchat.system.secret_store import SecretLocation
from tests.library.fake_hub import REVISION, TOKEN, FakeHub
from tests.systems import has_mode

REPOSITORY = "org/Thing-7B-GGUF"


@pytest.fixture
def hub(served: FakeHub) -> Hub:
    served.repositories[REPOSITORY] = {
        "README.md": b"# Thing",
        "Thing-7B-Q8_0.gguf": b"8" * 800,
        "Thing-7B-UD-Q4_K_XL.gguf": b"4" * 400,
        "mmproj-F16.gguf": b"m" * 100,
        "BF16/Thing-7B-BF16-00002-of-00002.gguf": b"b" * 900,
        "BF16/Thing-7B-BF16-00001-of-00002.gguf": b"a" * 900,
        "F32/Thing-7B-F32-00001-of-00002.gguf": b"c" * 900,
    }
    served.repositories["other/Else-GGUF"] = {}
    return Hub(lambda: None)


async def test_search_finds_repositories(hub: Hub, served: FakeHub) -> None:
    (found,) = await hub.search("thing")
    assert (found.repository, found.downloads, found.likes, found.gated) == (REPOSITORY, 1234, 56, False)
    assert found.updated is not None
    assert found.updated.year == 2026
    (request,) = served.requests
    assert "filter=gguf" in request.path
    assert "sort=downloads" in request.path
    assert "authorization" not in request.headers, "no token without need"
    agent = request.headers["user-agent"]
    assert agent.startswith("kvchat/")
    assert "torch" not in agent
    assert "agent/" not in agent


async def test_repository_lists_models(hub: Hub) -> None:
    for text in (REPOSITORY, f" https://huggingface.co/{REPOSITORY}/tree/main "):
        assert parse_repository(text) == REPOSITORY
    assert parse_repository("https://huggingface.co/org") is parse_repository("thing 7b") is None
    repository = await hub.repository(REPOSITORY)
    assert (repository.repository, repository.revision) == (REPOSITORY, REVISION)
    assert [(file.name, file.quantisation, file.size) for file in repository.files] == [
        ("Thing-7B-UD-Q4_K_XL", "UD-Q4_K_XL", 500),  # with the projector that lies with it
        ("Thing-7B-Q8_0", "Q8_0", 900),
        ("Thing-7B-BF16", "BF16", 1800),
    ]
    assert [part.path for part in repository.files[0].parts] == ["Thing-7B-UD-Q4_K_XL.gguf", "mmproj-F16.gguf"]
    assert repository.files[2].projector is None  # in another folder
    assert [part.path for part in repository.files[2].parts] == [
        "BF16/Thing-7B-BF16-00001-of-00002.gguf",
        "BF16/Thing-7B-BF16-00002-of-00002.gguf",
    ]


async def test_missing_repository_and_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match="Model not found") as caught:
        await hub.repository("org/Nothing")
    assert "org/Nothing" in str(caught.value)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(Unreachable, match="cannot be reached") as caught:
        await hub.search("thing")
    assert caught.value.detail == "Could not connect to 127.0.0.1:9."
    assert "internet" in caught.value.advice


def listing(**lfs: object) -> bytes:
    pointer = {"size": 8, "sha256": "a" * 64, "pointerSize": 1} | lfs
    file = {"rfilename": "Thing-7B-Q8_0.gguf", "size": 8, "lfs": pointer} | lfs
    return json.dumps({"id": REPOSITORY, "sha": REVISION, "siblings": [file]}).encode()


@pytest.mark.parametrize(
    "answer", [None, b"[" * 100_000, b" " * (MAX_RESPONSE_BYTES + 1), b'{"id": 1, "siblings": 5}', b"[5]", b"null"]
)
async def test_invalid_or_hostile_response_is_refused(hub: Hub, served: FakeHub, answer: bytes | None) -> None:
    served.answer, served.makes_sense = answer, answer is not None
    with pytest.raises(HubError, match="response is invalid"):
        await hub.search("thing")
    with pytest.raises(HubError, match="response is invalid"):
        await hub.repository(REPOSITORY)


@pytest.mark.parametrize(
    "lfs",
    [
        {"size": "8"},
        {"size": -1},
        {"size": 1e999},
        {"sha256": "../../x"},
        {"sha256": 5},
        {"rfilename": "../Thing-Q8_0.gguf"},
        {"rfilename": "C:\\Thing-Q8_0.gguf"},
        {"rfilename": "a/\0b-Q8_0.gguf"},
    ],
)
async def test_invalid_files_are_not_listed(hub: Hub, served: FakeHub, lfs: dict[str, object]) -> None:
    served.answer = listing()
    assert len((await hub.repository(REPOSITORY)).files) == 1
    served.answer = listing(**lfs)
    assert (await hub.repository(REPOSITORY)).files == ()


async def test_token_is_sent_and_never_logged(served: FakeHub, hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AccessNeeded, match="rejected the access token") as caught:
        await Hub(lambda: "hf_withdrawn_0000").repository(REPOSITORY)
    assert "hf_withdrawn_0000" not in str(caught.value)
    caplog.set_level(logging.DEBUG)
    await Hub(lambda: TOKEN).repository(REPOSITORY)
    assert served.requests[-1].headers["authorization"] == f"Bearer {TOKEN}"
    assert caplog.records
    assert TOKEN not in caplog.text


class MemoryKeyring(KeyringBackend):
    priority = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.stored.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.stored[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.stored[service, username]


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide the user's own token; restore the keyring afterwards."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    backend = keyring.get_keyring()
    yield
    keyring.set_keyring(backend)


@pytest.mark.usefixtures("no_token")
def test_keyring_is_preferred_to_a_file(tmp_path: Path) -> None:
    keyring.set_keyring(fail.Keyring())
    TokenStore(tmp_path).save("hf_in_a_file")
    backend = MemoryKeyring()
    keyring.set_keyring(backend)
    store = TokenStore(tmp_path)
    assert store.save(f" {TOKEN}\n") == SecretLocation.KEYRING.value
    assert store.load() == AccessToken(TOKEN, SecretLocation.KEYRING.value)
    assert not (tmp_path / TOKEN_FILE_NAME).exists()
    store.forget()
    assert store.load() is None
    assert backend.stored == {}


@pytest.mark.usefixtures("no_token")
@pytest.mark.parametrize("backend", [fail.Keyring, null.Keyring])
def test_private_file_without_a_keyring(
    tmp_path: Path, backend: type[KeyringBackend], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    keyring.set_keyring(backend())
    store = TokenStore(tmp_path / "config")
    assert store.save(TOKEN) == SecretLocation.FILE.value
    file = tmp_path / "config" / TOKEN_FILE_NAME
    assert has_mode(file, 0o600)
    found = TokenStore(tmp_path / "config").load()
    assert found == AccessToken(TOKEN, SecretLocation.FILE.value)
    assert TOKEN not in repr(found) + caplog.text
    for invalid in ("", "  ", "hf_", "two words here", "hf_ümlaut_abc", "hf_abc\ndef_ghi"):
        with pytest.raises(KvchatError, match="not an access token"):
            store.save(invalid)

    def write_nothing(path: Path, *arguments: object, **options: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr(Path, "write_text", write_nothing)
        with pytest.raises(OSError, match="No space left"):
            store.save("hf_another_one")
    assert store.load() == found, "the old token stays"
    assert store.save("hf_another_one") == SecretLocation.FILE.value
    store.forget()
    store.forget()
    assert store.load() is None
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert TokenStore(tmp_path).load() == AccessToken(TOKEN, EXTERNAL_LOCATION)
