from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvchat.chat.record.database import Database
from kvchat.session.host import ReadyEngine
from kvchat.session.restore_support import RestoreFinding, Strategy
from kvchat.tools.toolbox import Toolbox
from tests.chat.sky import Sky
from tests.chat.stage import Stage
from tests.engine_fixtures import FakeEngine


def use_finding(monkeypatch: pytest.MonkeyPatch, strategy: Strategy) -> None:
    async def found(host: ReadyEngine) -> RestoreFinding:
        return RestoreFinding(strategy, proved=True)

    monkeypatch.setattr("kvchat.engine_host.host.self_test", found)


@pytest.fixture(autouse=True)
def restoring_is_known_to_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the self-test of the first start; tests/chat/turn/test_self_test.py covers it."""
    use_finding(monkeypatch, Strategy.PLAIN)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(tmp_path / "data" / "conversations.db")) as database:
        yield database


@pytest.fixture
async def stage(tmp_path: Path, fake_engine: FakeEngine, smollm2: Path) -> AsyncIterator[Stage]:
    async with Stage(tmp_path / "Jürgens Ordner 晚 😀", fake_engine, smollm2) as stage:
        yield stage


@pytest.fixture
def cannot_cut(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behave like hybrid and recurrent models, whose states cannot be cut."""
    use_finding(monkeypatch, Strategy.SETTLE)
    stage.fake.set(FAKE_EXACT_ONLY=1)


@pytest.fixture(params=[True, False], ids=["can_cut", "cannot_cut"])
def can_cut(request: pytest.FixtureRequest) -> bool:
    if not request.param:
        request.getfixturevalue("cannot_cut")
    return bool(request.param)


@pytest.fixture
def sky(stage: Stage) -> Sky:
    sky = Sky()
    stage.service.turn_context.toolbox = Toolbox(lambda: [sky])
    return sky
