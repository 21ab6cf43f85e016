import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from hypothesis import HealthCheck, settings

from kvchat.session.restore_cost import MIN_GAIN, RestoreCost
from kvchat.text import language
from tests import models

pytest_plugins = ["tests.engine_fixtures", "tests.library.fake_hub"]

# Tests and the processes they start use English, whatever the desktop's language is.
os.environ["LANGUAGE"] = "C"

# They do not use the user's keyring.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"

# An engine's threads sleep while waiting: spinning made a bench of 9 s take 35 s on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A background shell makes its processes ignore Ctrl+C, and theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples take longer on a busy machine.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark long tests, and run the bundle's tests first: they take longest, and one process builds it."""
    items.sort(key=lambda item: item.path.name != "test_bundle.py")
    for item in items:
        if {"fake_engine", "window"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("long")


def pytest_collection_finish() -> None:
    """Reduce garbage collection, as kvchat does after startup: it took a twelfth of all the time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def restores_are_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore whatever the speeds measured on a busy machine say; tests of that decision override this fixture."""
    monkeypatch.setattr(RestoreCost, "is_worthwhile", lambda self, gain, size: gain >= MIN_GAIN)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the real starter model. Read-only."""
    return models.starter_model()


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Path]:
    """Return a function that makes a tiny model of an architecture: tiny_model("qwen35")."""
    return models.tiny_model


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
