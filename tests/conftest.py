import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from hypothesis import HealthCheck, settings
from keyring.backends import fail

from kvchat.text import language

pytest_plugins = ["tests.engine_fixtures", "tests.model_fixtures", "tests.library.fake_hub"]

# What tests expect is English, whatever the desktop speaks; see the processes that they start as well.
os.environ["LANGUAGE"] = "C"

# An engine's threads wait for each other asleep. On a busy machine one that spins waits for one that is not running: a
# bench of a tiny model that takes 9 s took 35, and three times the CPU time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that runs the tests in the background has them ignore Ctrl+C, and so would every process that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts fake engines: together they take longer than all other quick tests.

    The bundle's tests come first: nothing takes longer, and the first two go to one process, so that it is built once.
    """
    items.sort(key=lambda item: item.path.name != "test_bundle.py")
    for item in items:
        if "fake_engine" in getattr(item, "fixturenames", ()):
            item.add_marker("fake")


def pytest_collection_finish() -> None:
    """As kvchat does once it has begun: the collector need not go through all that was imported, again and again.

    Nor through a window that is being made: its passes took a twelfth of all the time.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def no_keyring() -> Iterator[None]:
    """No keyring answers: what is secret lies in files, where a process that a test starts finds it as well."""
    backend = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())
    yield
    keyring.set_keyring(backend)


@pytest.fixture(scope="session")
def compiled_catalogues(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("locale")
    for source in language.CATALOGUES.glob("*/LC_MESSAGES/*.po"):
        target = folder / source.relative_to(language.CATALOGUES).with_suffix(".mo")
        target.parent.mkdir(parents=True)
        built = source.with_suffix(".mo")
        if built.exists() and built.stat().st_mtime_ns > source.stat().st_mtime_ns:  # each process would take a second
            target.write_bytes(built.read_bytes())
            continue
        with source.open("rb") as po, target.open("wb") as mo:
            write_mo(mo, read_po(po))
    return folder


@pytest.fixture
def catalogues(compiled_catalogues: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(language, "CATALOGUES", compiled_catalogues)
    yield
    language.set_language("en")
