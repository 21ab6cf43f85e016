"""Prefix diagnosis through the gateway: why a prompt was processed again, and rules that prevent it."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kvchat.engine.process.plan import free_port
from kvchat.gateway.diagnosis.causes import RULE_BY_CAUSE
from kvchat.gateway.diagnosis.prompts import Divergence
from kvchat.gateway.records import TOLERANCE, DailyTotals, RequestRecord
from kvchat.settings import Settings
from kvchat.text.reasons import Reason, ReasonCode
from tests.engine_fixtures import FakeEngine
from tests.gateway import agents
from tests.gateway.servers import RunningGateway, receipt_in, running_gateway

YESTERDAY, TODAY, TOMORROW = (f"{datetime.now() + timedelta(days=days):%a %b %d %Y}" for days in (-1, 0, 1))
AGENTS = {"/v1/messages": "claude-cli/2.1.177 (external, cli)", "/v1/chat/completions": "opencode/1.18.33"}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, context_size=8192, api_any_model=True)


async def ask(server: RunningGateway, body: agents.Body, path: str = "/v1/chat/completions") -> str:
    answer = await server.client.post(path, json=body | {"max_tokens": 12}, headers={"user-agent": AGENTS[path]})
    assert answer.status_code == 200, answer.text
    await server.settled()
    return answer.text


async def test_divergence_is_in_the_receipt_and_the_totals(tmp_path: Path, server: RunningGateway) -> None:
    await ask(server, agents.opencode(date=TODAY))
    assert server.last.program == "opencode"
    assert server.last.costly_divergence is None
    receipt = receipt_in(await ask(server, agents.opencode(date=TOMORROW)))
    divergence = server.last.costly_divergence
    assert receipt["miss-code"] == ReasonCode.DATE_IN_SYSTEM
    assert RULE_BY_CAUSE[divergence.cause.code] == "hold-clock"
    assert TODAY in divergence.earlier_text
    assert TOMORROW in divergence.new_text
    entry = (await server.client.get("/kvchat/requests", headers={"user-agent": "opencode/1"})).json()["last"][0]
    assert (entry["miss"], entry["miss-code"]) == (receipt["miss"], receipt["miss-code"])
    assert TOMORROW not in json.dumps(entry)
    assert "changes" not in entry
    total = server.runtime.api_server.totals.by_program()["opencode"]
    assert total.requests == 2
    assert total.misses[ReasonCode.DATE_IN_SYSTEM].tokens == (server.last.prompt_tokens or 0) - (
        server.last.cached_tokens or 0
    )
    # If not even the shared beginning is found, the divergence is not the reason: no rule would have helped.
    await server.runtime.stop_engine()
    await server.runtime.save_points.delete(None)
    before = total.misses[ReasonCode.DATE_IN_SYSTEM].times
    await ask(server, agents.opencode(date=YESTERDAY))
    divergence, record = server.last.divergence, server.last
    assert divergence.cause == Reason(ReasonCode.DATE_IN_SYSTEM)
    assert (record.found_tokens or 0) < divergence.shared_tokens - TOLERANCE
    assert (record.costly_divergence, record.miss_reason) == (None, Reason(ReasonCode.NOTHING_ALIKE))
    total = server.runtime.api_server.totals.by_program()["opencode"]
    assert total.misses[ReasonCode.DATE_IN_SYSTEM].times == before
    await server.runtime.api_server.close()
    assert DailyTotals(tmp_path / "home" / "state" / "programs.json").by_program()["opencode"] == total


async def test_rule_avoids_the_divergence_and_counts_saved_tokens(
    server: RunningGateway, fake_engine: FakeEngine
) -> None:
    runtime = server.runtime
    await runtime.apply_settings(replace(runtime.settings, api_rules=("opencode hold-clock", "zed billing-header")))
    for date in (TODAY, TOMORROW):
        await ask(server, agents.opencode(date=date))
    record = server.last
    assert record.costly_divergence is None
    assert (record.cached_tokens or 0) > 0.9 * (record.prompt_tokens or 0)
    (change,) = record.changes
    assert (change.original.strip(), change.rewritten.strip()) == (
        f"Today's date: {TOMORROW}",
        f"Today's date: {TODAY}",
    )
    saved = record.saved_by_rule["hold-clock"]
    assert 0 < saved < (record.cached_tokens or 0)
    first, second = (sent["body"] for sent in fake_engine.requests() if sent["path"] == "/v1/chat/completions")
    assert first["messages"] == second["messages"]
    assert second["tools"] == agents.opencode()["tools"]
    assert runtime.api_server.totals.by_program()["opencode"].saved_by_rule["hold-clock"].tokens == saved
    assert record.as_json()["saved-by-rule"] == record.saved_by_rule


def other_question() -> agents.Body:
    body = agents.opencode()
    body["messages"][1]["content"] = "And how does the lexer know where it is?"
    return body


async def test_other_conversation_is_no_miss(server: RunningGateway) -> None:
    await ask(server, agents.opencode())
    await ask(server, other_question())
    assert server.last.divergence.cause == Reason(ReasonCode.OTHER_CONVERSATION)
    assert server.last.costly_divergence is None
    assert server.last.miss_reason is None
    await server.runtime.api_server.forget("opencode")
    assert not server.runtime.api_server.recent_requests
    assert not server.runtime.api_server.totals.by_program()
    assert not (await server.runtime.save_points.usage()).conversations
    await ask(server, agents.opencode(date=TOMORROW))
    assert server.last.divergence is None, "forgotten prompts are not compared"


async def test_deleted_memory_is_the_reason_only_for_its_own_conversation(server: RunningGateway) -> None:
    """A program has many conversations."""
    store = server.runtime.save_points
    await ask(server, agents.opencode())
    assert server.last.miss_reason == Reason(ReasonCode.NOTHING_ALIKE)
    later = agents.opencode()
    later["messages"] += [agents.assistant("By counting."), agents.user("And the printer?")]
    title = {"messages": [agents.user("Name this chat. " * 20)]}
    alike, pruned = ReasonCode.NOTHING_ALIKE, ReasonCode.PRUNED_BY_USER
    for body, reason in ((title, alike), (other_question(), pruned), (later, pruned)):
        await server.runtime.stop_engine()
        await store.prune(await store.plan_prune(0))
        await ask(server, body)
        assert server.last.cached_tokens == 0
        assert server.last.miss_reason == Reason(reason)
    total = server.runtime.api_server.totals.by_program()["opencode"]
    assert {cause: cost.times for cause, cost in total.misses.items()} == {pruned: 2}


@pytest.mark.parametrize("cannot_cut_states", [True, False])
@pytest.mark.parametrize(
    ("code", "is_other_reason"),
    [
        (None, False),
        (ReasonCode.NOTHING_ALIKE, False),
        (ReasonCode.GOES_ON_OTHERWISE, False),
        (ReasonCode.NOT_WORTH_IT, True),
        (ReasonCode.NOT_REUSED, True),
        (ReasonCode.PRUNED_BY_USER, True),
    ],
)
def test_divergence_is_the_reason_only_if_there_is_no_other(
    code: ReasonCode | None, is_other_reason: bool, cannot_cut_states: bool
) -> None:
    """A failed or skipped restore is the reason."""
    divergence, miss = Divergence(0, 900, Reason(ReasonCode.SYSTEM_CHANGED)), Reason(code) if code else None
    values = {
        "found_tokens": 0,
        "prompt_tokens": 900,
        "miss": miss,
        "divergence": divergence,
        "cannot_cut_states": cannot_cut_states,
    }
    record = RequestRecord(1, "zed", "/v1/messages", 0.0, **values)
    assert record.miss_reason == (miss if is_other_reason else divergence.cause)
    assert (record.costly_divergence is None) == is_other_reason


async def test_key_works_and_is_revoked_at_once(tmp_path: Path, settings: Settings) -> None:
    async with running_gateway(tmp_path / "home", replace(settings, api_port=free_port("127.0.0.1"))) as server:
        service = server.runtime.api_server
        await service.follow_settings()
        keys = await service.keys()
        for program in ("", "zed", "zed"):
            await service.make_key(program)
            old_keys, keys = keys, await service.keys()
        assert set(keys) == {"", "zed"}
        assert old_keys["zed"] != keys["zed"]
        await server.runtime.apply_settings(replace(server.runtime.settings, api_server=True))
        server.client.base_url = service.url or ""
        zed = {"authorization": f"Bearer {keys['zed']}"}
        assert (await server.client.get("/v1/models", headers=zed)).status_code == 200
        assert (await server.client.get("/v1/models")).status_code == 401
        await service.revoke_key("zed")
        assert (await server.client.get("/v1/models", headers=zed)).status_code == 401
        everybody = {"authorization": f"Bearer {keys['']}"}
        assert (await server.client.get("/v1/models", headers=everybody)).status_code == 200
        await service.revoke_key("")
        assert await service.keys() == {}
        assert not (tmp_path / "home" / "config" / "api-keys").exists()


@pytest.mark.engine
async def test_divergence_is_found_after_a_restart(tmp_path: Path, real: Callable[..., Settings]) -> None:
    """Prompts are remembered in memory only; stored ones replace them."""
    question = agents.user("How does the parser recover? " * 30)
    async with running_gateway(tmp_path / "home", real()) as server:
        await ask(server, agents.opencode(question, date=TODAY))
    async with running_gateway(tmp_path / "home", real()) as server:
        await ask(server, agents.opencode(question, date=TOMORROW))
        divergence = server.last.costly_divergence
        assert divergence.cause == Reason(ReasonCode.DATE_IN_SYSTEM)
        assert TODAY in divergence.earlier_text
        assert TOMORROW in divergence.new_text
        assert divergence.shared_tokens > 100
    async with running_gateway(tmp_path / "home", real()) as server:
        await ask(server, agents.opencode(agents.user("What else? " * 20), date=TODAY))
        assert server.last.miss_reason is None
        assert (server.last.cached_tokens or 0) > 100


@pytest.mark.engine
async def test_billing_header_with_the_real_engine(tmp_path: Path, real: Callable[..., Settings]) -> None:
    """The engine itself ignores the number of each request; the version changes with an update."""

    def updated(to: str) -> agents.Body:
        body = agents.claude_code()
        body["system"][0]["text"] = body["system"][0]["text"].replace("2.1.177", to)
        return body

    async with running_gateway(tmp_path / "home", real()) as server:
        for version in ("2.1.177", "2.1.178"):
            await ask(server, updated(version), "/v1/messages")
        assert server.last.miss_reason == Reason(ReasonCode.BILLING_HEADER)
        assert (server.last.cached_tokens or 0) < 0.2 * (server.last.prompt_tokens or 0)
        await server.runtime.apply_settings(replace(server.runtime.settings, api_rules=("claude-cli billing-header",)))
        for version in ("2.1.179", "2.1.180"):
            await ask(server, updated(version), "/v1/messages")
        assert server.last.miss_reason is None
        assert (server.last.cached_tokens or 0) > 0.9 * (server.last.prompt_tokens or 0)
        assert server.last.saved_by_rule == {"billing-header": server.last.cached_tokens}
