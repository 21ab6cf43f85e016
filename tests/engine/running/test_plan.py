from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine import embedded
from kvchat.engine.finding.discovery import EngineKind, EngineLocation
from kvchat.engine.running.plan import LaunchPlan, embedded_parameters, llama_server_arguments, prepare

PLAN = LaunchPlan(Path("/models/a b.gguf"), 8192, Path("/slots"), port=4567, kv_type_k="q8_0", kv_type_v="q5_1")


def value_of(flag: str, arguments: list[str]) -> str:
    assert arguments.count(flag) == 1
    return arguments[arguments.index(flag) + 1]


def test_llama_server_gets_everything_the_plan_says() -> None:
    arguments = llama_server_arguments(PLAN)
    assert value_of("--model", arguments) == "/models/a b.gguf"
    assert value_of("--ctx-size", arguments) == "8192"
    assert value_of("--slot-save-path", arguments) == "/slots"
    assert (value_of("--host", arguments), value_of("--port", arguments)) == ("127.0.0.1", "4567")
    assert (value_of("-ctk", arguments), value_of("-ctv", arguments)) == ("q8_0", "q5_1")
    assert value_of("--batch-size", arguments) == "512"
    assert value_of("--cache-ram", arguments) == "0"


def test_one_slot_and_one_kv_stream() -> None:
    arguments = llama_server_arguments(PLAN)
    assert value_of("--parallel", arguments) == "1"
    assert "--kv-unified" in arguments
    fields = embedded_parameters(PLAN)
    assert (fields["n_parallel"], fields["kv_unified"]) == (1, True)


def test_the_embedded_engine_gets_the_same() -> None:
    fields = json.loads(json.dumps(embedded_parameters(PLAN)))
    assert fields["model.path"] == "/models/a b.gguf"
    assert fields["n_ctx"] == 8192
    assert (fields["hostnames"], fields["port"]) == (["127.0.0.1"], 4567)
    assert (fields["cache_type_k"], fields["cache_type_v"]) == ("q8_0", "q5_1")
    assert (fields["n_batch"], fields["cache_ram_mib"]) == (512, 0)


def test_the_embedded_slot_path_ends_with_a_separator() -> None:
    """llama.cpp joins folder and file name without one."""
    assert embedded_parameters(PLAN)["slot_save_path"] == f"/slots{os.sep}"


def test_what_a_build_does_not_know_is_left_out() -> None:
    arguments = llama_server_arguments(replace(PLAN, left_out=frozenset(("--cache-ram", "--jinja"))))
    assert not {"--cache-ram", "--jinja", "0"} & set(arguments)
    assert "--kv-unified" in arguments


def test_the_engine_decides_what_goes_on_a_gpu_where_there_is_one() -> None:
    arguments = llama_server_arguments(PLAN)
    assert value_of("--fit", arguments) == "off"
    assert not {"--n-gpu-layers", "--fit-target"} & set(arguments)
    arguments = llama_server_arguments(replace(PLAN, fit_target=400 * 1024 * 1024))
    assert (value_of("--fit", arguments), value_of("--fit-target", arguments)) == ("on", "400")
    assert "--n-gpu-layers" not in arguments
    assert value_of("--n-gpu-layers", llama_server_arguments(replace(PLAN, without_gpu=True))) == "0"
    assert embedded_parameters(PLAN)["fit_params"] is (sys.platform == "darwin")


def test_the_engine_is_asked_to_tell_what_memory_it_takes() -> None:
    assert value_of("--verbosity", llama_server_arguments(PLAN)) == "4"
    assert embedded_parameters(PLAN)["verbosity"] == 4


def test_few_context_checkpoints_are_kept() -> None:
    assert value_of("--ctx-checkpoints", llama_server_arguments(PLAN)) == "2"
    assert embedded_parameters(PLAN)["n_ctx_checkpoints"] == 2


def test_no_web_page_may_talk_to_the_engine() -> None:
    origin = value_of("--cors-origins", llama_server_arguments(PLAN))
    assert origin.endswith(".invalid")
    assert embedded_parameters(PLAN)["cors_origins"] == origin


def test_workers_and_the_users_own_arguments_come_last() -> None:
    arguments = llama_server_arguments(replace(PLAN, rpc_workers=("den:1", "attic:2"), extra=("-t", "4")))
    assert arguments[-4:] == ["--rpc", "den:1,attic:2", "-t", "4"]


UNPREPARED = LaunchPlan(Path("/m.gguf"), 4096, Path("/slots"))
SERVER = EngineLocation(EngineKind.LLAMA_SERVER, Path("/bin/llama-server"))
EMBEDDED = EngineLocation(EngineKind.EMBEDDED)


@pytest.mark.parametrize("location", [SERVER, EMBEDDED])
def test_the_key_is_fresh_and_only_in_the_environment(location: EngineLocation) -> None:
    first, second = prepare(location, UNPREPARED), prepare(location, UNPREPARED)
    assert first.key != second.key
    assert first.key in first.environment.values()
    assert first.key not in " ".join(first.command)
    assert first.key not in repr(first)


def test_a_port_is_chosen_where_the_plan_leaves_it_open() -> None:
    invocation = prepare(SERVER, UNPREPARED)
    assert invocation.plan.port > 0
    assert invocation.command[invocation.command.index("--port") + 1] == str(invocation.plan.port)
    assert invocation.base_url == f"http://127.0.0.1:{invocation.plan.port}"
    assert prepare(SERVER, replace(UNPREPARED, port=4567)).plan.port == 4567


def test_each_engine_gets_its_own_command() -> None:
    assert prepare(SERVER, UNPREPARED).command[0] == "/bin/llama-server"
    invocation = prepare(EMBEDDED, UNPREPARED)
    assert json.loads(invocation.command[-1])["port"] == invocation.plan.port
    assert invocation.environment[embedded.KEY_VARIABLE] == invocation.key


def test_the_environment_of_the_user_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_CUDA_DISABLE_GRAPHS", "1")
    monkeypatch.setenv("LLAMA_API_KEY", "the user's own, for another server")
    invocation = prepare(SERVER, UNPREPARED)
    assert invocation.environment["GGML_CUDA_DISABLE_GRAPHS"] == "1"
    assert invocation.environment["LLAMA_API_KEY"] == invocation.key
