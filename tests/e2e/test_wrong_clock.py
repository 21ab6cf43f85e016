"""`kvchat ask` with a clock that is years off: deleted chats stay restorable, and the newest chat stays the newest."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.deletion import entries
from kvchat.chat.record.database import Database
from tests.e2e.home import Home
from tests.models import tiny_model

pytestmark = pytest.mark.e2e

YEAR_S = 365 * 86_400
# Python imports it at startup: the process's clock is off by SHIFTED_S seconds.
SITE = """
import datetime
import os
import time

shift, real = float(os.environ["SHIFTED_S"]), time.time


class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)


time.time = lambda: real() + shift
datetime.datetime = Shifted
"""


@pytest.fixture
def shift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Shift the clock of processes started from now on by some years."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))

    def by(years: float) -> None:
        monkeypatch.setenv("SHIFTED_S", str(years * YEAR_S))

    by(0)
    return by


def test_a_wrong_date_purges_no_deleted_chat_and_selects_no_other_chat(
    tmp_path: Path, shift: Callable[[float], None]
) -> None:
    home, model = Home(tmp_path / "home"), ("--model", str(tiny_model("llama")))
    deleted = home.ask("--new", *model, "Which river is the longest?")["chat_id"]
    assert home.run("chats", "delete", deleted).returncode == 0
    old = home.ask("--new", *model, "Where do herons sleep?")["chat_id"]
    shift(-7)
    new = home.ask("--new", *model, "Where do storks sleep?")["chat_id"]
    shift(0)
    assert home.ask(*model, "And rooks?")["chat_id"] == new != old
    shift(5)
    assert home.ask("--chat", old, *model, "And in winter?")["chat_id"] == old
    shift(0)
    assert home.ask(*model, "And in spring?")["chat_id"] == old
    with closing(Database(home.folder / "data" / "conversations.db")) as database:
        assert [entry.id for entry in entries(database, 7 * 86_400)] == [deleted]
