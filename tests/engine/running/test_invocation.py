from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine import embedded
from kvchat.engine.finding.discovery import EngineKind, EngineLocation
from kvchat.engine.running.plan import LaunchPlan, prepare

PLAN = LaunchPlan(Path("/m.gguf"), 4096, Path("/slots"))
SERVER = EngineLocation(EngineKind.LLAMA_SERVER, Path("/bin/llama-server"))
EMBEDDED = EngineLocation(EngineKind.EMBEDDED)


@pytest.mark.parametrize("location", [SERVER, EMBEDDED])
def test_the_key_is_fresh_and_only_in_the_environment(location: EngineLocation) -> None:
    first, second = prepare(location, PLAN), prepare(location, PLAN)
    assert first.key != second.key
    assert first.key in first.environment.values()
    assert first.key not in " ".join(first.command)
    assert first.key not in repr(first)


def test_a_port_is_chosen_where_the_plan_leaves_it_open() -> None:
    invocation = prepare(SERVER, PLAN)
    assert invocation.plan.port > 0
    assert invocation.command[invocation.command.index("--port") + 1] == str(invocation.plan.port)
    assert invocation.base_url == f"http://127.0.0.1:{invocation.plan.port}"
    assert prepare(SERVER, replace(PLAN, port=4567)).plan.port == 4567


def test_each_engine_gets_its_own_command() -> None:
    assert prepare(SERVER, PLAN).command[0] == "/bin/llama-server"
    invocation = prepare(EMBEDDED, PLAN)
    assert json.loads(invocation.command[-1])["port"] == invocation.plan.port
    assert invocation.environment[embedded.KEY_VARIABLE] == invocation.key


def test_the_environment_of_the_user_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_CUDA_DISABLE_GRAPHS", "1")
    monkeypatch.setenv("LLAMA_API_KEY", "the user's own, for another server")
    invocation = prepare(SERVER, PLAN)
    assert invocation.environment["GGML_CUDA_DISABLE_GRAPHS"] == "1"
    assert invocation.environment["LLAMA_API_KEY"] == invocation.key
