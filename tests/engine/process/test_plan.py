import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.engine import embedded
from kvchat.engine.discovery.arguments import KnownOptions, Option
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.plan import LaunchPlan, embedded_parameters, llama_server_arguments, make_invocation

PLAN = LaunchPlan(Path("/models/a b.gguf"), 8192, Path("/slots"), port=4567, kv_type="q8_0")


def value_of(flag: str, arguments: list[str]) -> str:
    assert arguments.count(flag) == 1
    return arguments[arguments.index(flag) + 1]


SAID: dict[str, tuple[str, object]] = {  # by llama-server's option: the embedded engine's field and its value
    "--model": ("model.path", str(Path("/models/a b.gguf"))),
    "--ctx-size": ("n_ctx", 8192),
    "--port": ("port", 4567),
    "-ctk": ("cache_type_k", "q8_0"),
    "-ctv": ("cache_type_v", "q8_0"),
    "--batch-size": ("n_batch", 512),
    "--parallel": ("n_parallel", 1),
    "--cache-ram": ("cache_ram_mib", 0),
    "--ctx-checkpoints": ("n_ctx_checkpoints", 2),
    "--verbosity": ("verbosity", 4),  # it logs its memory use
}


def test_arguments_of_both_engines() -> None:
    arguments, fields = llama_server_arguments(PLAN), json.loads(json.dumps(embedded_parameters(PLAN)))
    for flag, (field, value) in SAID.items():
        assert (value_of(flag, arguments), fields[field]) == (str(value), value)
    assert "--kv-unified" in arguments
    assert fields["kv_unified"] is True
    assert (value_of("--host", arguments), fields["hostnames"]) == ("127.0.0.1", ["127.0.0.1"])
    assert value_of("--slot-save-path", arguments) == str(Path("/slots"))
    # llama.cpp joins folder and file name without a separator.
    assert fields["slot_save_path"] == str(Path("/slots")) + os.sep
    assert value_of("--cors-origins", arguments).endswith(".invalid")  # no web page may send requests
    assert fields["cors_origins"] == value_of("--cors-origins", arguments)
    old = KnownOptions((Option(("--metrics",), 0), Option(("--verbosity",), 1)))
    arguments = llama_server_arguments(
        replace(PLAN, known_options=old, rpc_workers=("den:1", "attic:2"), extra_arguments=("-t", "4"))
    )
    assert "--metrics" in arguments
    assert not {"--cache-ram", "--jinja", "0"} & set(arguments)
    assert "--verbosity" not in arguments, "without the level trace it would log conversations"
    assert arguments[-4:] == ["--rpc", "den:1,attic:2", "-t", "4"]  # the user's own come last


def test_paths_for_engines_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    server, long = EngineLocation(Path("/bin/llama-server")), Path("/" + "x" * 201)
    plan = replace(PLAN, model=long, slot_path=Path("/Jürgen/staging/0a"))
    made = make_invocation(server, plan)
    assert value_of("--model", list(made.command)) == rf"\\?\{long}"
    assert value_of("--slot-save-path", list(made.command)) == "0a"
    assert (made.working_folder, made.plan.slot_path) == (plan.slot_path.parent, plan.slot_path)
    made = make_invocation(server, PLAN)
    assert (value_of("--slot-save-path", list(made.command)), made.working_folder) == (str(PLAN.slot_path), None)


def test_gpu_arguments() -> None:
    arguments = llama_server_arguments(PLAN)
    assert value_of("--fit", arguments) == "off"
    assert not {"--n-gpu-layers", "--fit-target"} & set(arguments)
    arguments = llama_server_arguments(replace(PLAN, fit_target=400 * 1024 * 1024))
    assert (value_of("--fit", arguments), value_of("--fit-target", arguments)) == ("on", "400")
    assert "--n-gpu-layers" not in arguments
    arguments = llama_server_arguments(replace(PLAN, without_gpu=True))
    assert value_of("--n-gpu-layers", arguments) == "0"
    assert "--device" not in arguments, "a GPU can still help to process prompts"
    assert value_of("--device", llama_server_arguments(replace(PLAN, embeds=True))) == "none"
    assert embedded_parameters(PLAN)["fit_params"] is (sys.platform == "darwin")


def test_invocation_has_a_free_port_and_a_new_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_CUDA_DISABLE_GRAPHS", "1")
    monkeypatch.setenv("LLAMA_API_KEY", "the user's own, for another server")
    plan, server = replace(PLAN, port=0), EngineLocation(Path("/bin/llama-server"))
    for location, variable in ((server, "LLAMA_API_KEY"), (EngineLocation(), embedded.KEY_VARIABLE)):
        first, second = make_invocation(location, plan), make_invocation(location, plan)
        assert first.key != second.key
        assert first.environment[variable] == first.key
        assert first.environment["GGML_CUDA_DISABLE_GRAPHS"] == "1"
        assert first.environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
        assert first.key not in f"{first.command} {first}"
        port = first.plan.port
        assert first.base_url == f"http://127.0.0.1:{port}"
        said = value_of("--port", list(first.command)) if location.path else json.loads(first.command[-1])["port"]
        assert int(said) == port > 0
    assert make_invocation(server, PLAN).plan.port == 4567
