from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine import embedded
from kvchat.engine.discovery import EngineKind, EngineLocation
from kvchat.engine.launch import prepare
from kvchat.engine.plan import LaunchPlan

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
    launch = prepare(SERVER, PLAN)
    assert launch.plan.port > 0
    assert launch.command[launch.command.index("--port") + 1] == str(launch.plan.port)
    assert launch.base_url == f"http://127.0.0.1:{launch.plan.port}"
    assert prepare(SERVER, replace(PLAN, port=4567)).plan.port == 4567


def test_each_engine_gets_its_own_command() -> None:
    assert prepare(SERVER, PLAN).command[0] == "/bin/llama-server"
    launch = prepare(EMBEDDED, PLAN)
    assert json.loads(launch.command[-1])["port"] == launch.plan.port
    assert launch.environment[embedded.KEY_VARIABLE] == launch.key


def test_the_environment_of_the_user_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_CUDA_DISABLE_GRAPHS", "1")
    monkeypatch.setenv("LLAMA_API_KEY", "the user's own, for another server")
    launch = prepare(SERVER, PLAN)
    assert launch.environment["GGML_CUDA_DISABLE_GRAPHS"] == "1"
    assert launch.environment["LLAMA_API_KEY"] == launch.key
