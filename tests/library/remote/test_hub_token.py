"""Where the access token is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail, null

from kvchat.library.remote.hub import ELSEWHERE, FILE_NAME, BadToken, TokenStore
from kvchat.system.secret_store import Keeper
from tests.library.fake_hub import TOKEN


class MemoryKeyring(KeyringBackend):
    """A keyring as a desktop has it."""

    priority = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture(autouse=True)
def before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No token of the user's own, and the keyring of before afterwards."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    backend = keyring.get_keyring()
    yield
    keyring.set_keyring(backend)


def test_a_keyring_is_preferred_once_there_is_one(tmp_path: Path) -> None:
    keyring.set_keyring(fail.Keyring())
    TokenStore(tmp_path).save("hf_in_a_file")
    backend = MemoryKeyring()
    keyring.set_keyring(backend)
    store = TokenStore(tmp_path)
    assert store.save(f" {TOKEN}\n") == Keeper.KEYRING.value
    found = store.load()
    assert found is not None
    assert (found.value, found.place) == (TOKEN, Keeper.KEYRING.value)
    assert not (tmp_path / FILE_NAME).exists()
    store.forget()
    assert store.load() is None
    assert backend.kept == {}


@pytest.mark.parametrize("backend", [fail.Keyring, null.Keyring])
def test_without_a_keyring_a_private_file_serves(
    tmp_path: Path, backend: type[KeyringBackend], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keyring.set_keyring(backend())
    store = TokenStore(tmp_path / "config")
    assert store.save(TOKEN) == Keeper.FILE.value
    file = tmp_path / "config" / FILE_NAME
    assert file.stat().st_mode & 0o777 == 0o600
    found = TokenStore(tmp_path / "config").load()
    assert found is not None
    assert (found.value, found.place) == (TOKEN, Keeper.FILE.value)
    assert TOKEN not in repr(found)
    assert TOKEN not in caplog.text
    assert store.save("hf_another_one") == Keeper.FILE.value
    store.forget()
    store.forget()
    assert store.load() is None


def test_the_token_of_hugging_faces_own_tools_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring.set_keyring(fail.Keyring())
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    found = TokenStore(tmp_path).load()
    assert found is not None
    assert (found.value, found.place) == (TOKEN, ELSEWHERE)


@pytest.mark.parametrize("value", ["", "  ", "hf_", "two words here", "hf_ümlaut_abc", "hf_abc\ndef_ghi"])
def test_what_cannot_be_a_token_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(BadToken):
        TokenStore(tmp_path).save(value)
