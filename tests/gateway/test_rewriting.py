"""Prefix diagnosis through the gateway: why a prompt was processed again, and rules that prevent it."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kvchat.engine.process.plan import free_port
from kvchat.gateway.diagnosis.causes import RULE_BY_CAUSE
from kvchat.gateway.diagnosis.prompts import Divergence
from kvchat.gateway.records import TOLERANCE, RequestRecord, Totals
from kvchat.gateway.rewriting import PromptRewriter
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


async def ask(at: RunningGateway, body: agents.Body, path: str = "/v1/chat/completions") -> str:
    body = body | {"max_tokens": 12}
    answer = await at.client.post(path, json=body, headers={"user-agent": AGENTS[path]})
    assert answer.status_code == 200, answer.text
    await at.settled()
    return answer.text


async def test_a_long_request_is_mended_off_the_event_loop(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, rewrite = [], PromptRewriter.rewrite

    def heard(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return rewrite(*given)

    monkeypatch.setattr(PromptRewriter, "rewrite", heard)
    body = agents.opencode(agents.user("So? " * 10_000))
    async with running_gateway(tmp_path / "home", replace(settings, api_rules=("opencode hold-clock",))) as at:
        await at.client.post("/v1/chat/completions", json=body, headers={"user-agent": "opencode/1"})
    assert threads
    assert threading.main_thread() not in threads


async def test_why_it_was_read_again_is_told_in_the_receipt_and_added_up(tmp_path: Path, at: RunningGateway) -> None:
    await ask(at, agents.opencode(date=TODAY))
    assert at.last.program == "opencode"
    assert at.last.costly_divergence is None
    told = receipt_in(await ask(at, agents.opencode(date=TOMORROW)))
    divergence = at.last.costly_divergence
    assert divergence
    assert told["miss-code"] == ReasonCode.DATE_IN_SYSTEM
    assert RULE_BY_CAUSE[divergence.cause.code] == "hold-clock"
    assert TODAY in divergence.before
    assert TOMORROW in divergence.after
    listed = (await at.client.get("/kvchat/requests", headers={"user-agent": "opencode/1"})).json()["last"][0]
    assert (listed["miss"], listed["miss-code"]) == (told["miss"], told["miss-code"])
    assert TOMORROW not in json.dumps(listed)
    assert "changes" not in listed
    total = at.runtime.api_server.totals.by_program()["opencode"]
    assert total.requests == 2
    assert total.misses[ReasonCode.DATE_IN_SYSTEM].tokens == (at.last.prompt or 0) - (at.last.cached or 0)
    # What both prompts begin with is not found either: that is another reason, and no rule would have spared it.
    await at.runtime.stop_engine()
    await at.runtime.save_points.delete(None)
    before = total.misses[ReasonCode.DATE_IN_SYSTEM].times
    await ask(at, agents.opencode(date=YESTERDAY))
    divergence, record = at.last.divergence, at.last
    assert divergence.cause == Reason(ReasonCode.DATE_IN_SYSTEM)
    assert (record.found or 0) < divergence.at - TOLERANCE
    assert (record.costly_divergence, record.miss_reason) == (None, Reason(ReasonCode.NOTHING_ALIKE))
    total = at.runtime.api_server.totals.by_program()["opencode"]
    assert total.misses[ReasonCode.DATE_IN_SYSTEM].times == before
    await at.runtime.api_server.close()
    assert Totals(tmp_path / "home" / "state" / "programs.json").by_program()["opencode"] == total


async def test_a_rule_mends_it_and_counts_what_it_spares(at: RunningGateway, fake_engine: FakeEngine) -> None:
    runtime = at.runtime
    await runtime.apply_settings(replace(runtime.settings, api_rules=("opencode hold-clock", "zed billing-header")))
    for date in (TODAY, TOMORROW):
        await ask(at, agents.opencode(date=date))
    prompt, cached = at.last.prompt or 0, at.last.cached or 0
    assert at.last.costly_divergence is None
    assert cached > 0.9 * prompt
    (change,) = at.last.changes
    assert (change.before.strip(), change.after.strip()) == (f"Today's date: {TOMORROW}", f"Today's date: {TODAY}")
    assert 0 < at.last.saved_by_rule["hold-clock"] < cached
    forwarded = [one["body"] for one in fake_engine.requests() if one["path"] == "/v1/chat/completions"]
    assert forwarded[0]["messages"] == forwarded[1]["messages"]
    assert forwarded[1]["tools"] == agents.opencode()["tools"]
    assert (
        runtime.api_server.totals.by_program()["opencode"].saved_by_rule["hold-clock"].tokens
        == at.last.saved_by_rule["hold-clock"]
    )
    assert at.last.as_json()["saved-by-rule"] == at.last.saved_by_rule


async def test_a_prompt_that_goes_on_is_no_miss_nor_is_another_conversation(at: RunningGateway) -> None:
    first = agents.opencode()
    await ask(at, first)
    other = copy.deepcopy(first)
    other["messages"][1]["content"] = "And how does the lexer know where it is?"
    await ask(at, other)
    assert at.last.divergence.cause == Reason(ReasonCode.OTHER_CONVERSATION)
    assert at.last.costly_divergence is None
    assert at.last.miss_reason is None
    await at.runtime.api_server.forget("opencode")
    assert not at.runtime.api_server.recent
    assert not at.runtime.api_server.totals.by_program()
    assert not (await at.runtime.save_points.usage()).conversations
    await ask(at, agents.opencode(date=TOMORROW))
    assert at.last.divergence is None, "what is forgotten is not compared with"


async def test_only_what_was_kept_once_is_said_to_be_gone(at: RunningGateway) -> None:
    """A program has many conversations: what was deleted of one is no reason why another is read."""
    first, store = agents.opencode(), at.runtime.save_points
    await ask(at, first)
    assert at.last.miss_reason == Reason(ReasonCode.NOTHING_ALIKE)
    other, later = copy.deepcopy(first), copy.deepcopy(first)
    other["messages"][1]["content"] = "And how does the lexer know where it is?"
    later["messages"] += [agents.assistant("By counting."), agents.user("And the printer?")]
    title = {"messages": [agents.user("Name this chat. " * 20)]}
    alike, pruned = ReasonCode.NOTHING_ALIKE, ReasonCode.PRUNED_BY_USER
    for body, reason in ((title, alike), (other, pruned), (later, pruned)):
        await at.runtime.stop_engine()
        await store.prune(await store.plan_prune(0))
        await ask(at, body)
        assert at.last.cached == 0
        assert at.last.miss_reason == Reason(reason)
    total = at.runtime.api_server.totals.by_program()["opencode"]
    assert {cause: one.times for cause, one in total.misses.items()} == {pruned: 2}


@pytest.mark.parametrize("whole", [True, False])
def test_where_prompts_part_is_told_only_where_nothing_else_is_known(whole: bool) -> None:
    """A restore that failed, or was left, is the reason; where prompts part would have been none."""
    divergence = Divergence(0, 900, Reason(ReasonCode.SYSTEM_CHANGED))
    untold = Reason(ReasonCode.NOTHING_ALIKE), Reason(ReasonCode.GOES_ON_OTHERWISE)
    told_of = Reason(ReasonCode.NOT_WORTH_IT), Reason(ReasonCode.NOT_REUSED), Reason(ReasonCode.PRUNED_BY_USER)
    for miss in (None, *untold, *told_of):
        record = RequestRecord(
            1, "zed", "/v1/messages", 0.0, found=0, prompt=900, miss=miss, divergence=divergence, whole_only=whole
        )
        told = miss not in told_of
        assert record.miss_reason == (divergence.cause if told else miss)
        assert (record.costly_divergence is divergence) == told


async def test_a_key_is_in_force_at_once_and_taken_back_at_once(tmp_path: Path, settings: Settings) -> None:
    async with running_gateway(tmp_path / "home", replace(settings, api_port=free_port("127.0.0.1"))) as at:
        service = at.runtime.api_server
        await service.follow()
        await service.make_key()
        await service.make_key("zed")
        keys = await service.keys()
        assert set(keys) == {"", "zed"}
        await at.runtime.apply_settings(replace(at.runtime.settings, api_server=True))
        at.client.base_url = service.url or ""
        zed = {"authorization": f"Bearer {keys['zed']}"}
        assert (await at.client.get("/v1/models", headers=zed)).status_code == 200
        assert (await at.client.get("/v1/models")).status_code == 401
        await service.revoke_key("zed")
        assert (await at.client.get("/v1/models", headers=zed)).status_code == 401
        everybody = {"authorization": f"Bearer {keys['']}"}
        assert (await at.client.get("/v1/models", headers=everybody)).status_code == 200


@pytest.mark.engine
async def test_it_is_told_after_a_restart_as_well(tmp_path: Path, real: Callable[..., Settings]) -> None:
    """What was asked is remembered in memory alone; what the store keeps of it tells the same."""
    question = agents.user("How does the parser recover? " * 30)
    async with running_gateway(tmp_path / "home", real()) as at:
        await ask(at, agents.opencode(question, date=TODAY))
    async with running_gateway(tmp_path / "home", real()) as at:
        await ask(at, agents.opencode(question, date=TOMORROW))
        divergence = at.last.costly_divergence
        assert divergence.cause == Reason(ReasonCode.DATE_IN_SYSTEM)
        assert TODAY in divergence.before
        assert TOMORROW in divergence.after
        assert divergence.at > 100
    async with running_gateway(tmp_path / "home", real()) as at:
        await ask(at, agents.opencode(agents.user("What else? " * 20), date=TODAY))
        assert at.last.miss_reason is None
        assert (at.last.cached or 0) > 100


@pytest.mark.engine
async def test_the_billing_header_of_claude_code_before_the_real_engine(
    tmp_path: Path, real: Callable[..., Settings]
) -> None:
    """The engine itself leaves out the number of each request; the version is another one after an update."""

    def updated(to: str) -> agents.Body:
        body = agents.claude_code()
        body["system"][0]["text"] = body["system"][0]["text"].replace("2.1.177", to)
        return body

    async with running_gateway(tmp_path / "home", real()) as at:
        for version in ("2.1.177", "2.1.178"):
            await ask(at, updated(version), "/v1/messages")
        assert at.last.miss_reason == Reason(ReasonCode.BILLING_HEADER)
        assert (at.last.cached or 0) < 0.2 * (at.last.prompt or 0)
        await at.runtime.apply_settings(replace(at.runtime.settings, api_rules=("claude-cli billing-header",)))
        for version in ("2.1.179", "2.1.180"):
            await ask(at, updated(version), "/v1/messages")
        assert at.last.miss_reason is None
        assert (at.last.cached or 0) > 0.9 * (at.last.prompt or 0)
        assert at.last.saved_by_rule == {"billing-header": at.last.cached}
