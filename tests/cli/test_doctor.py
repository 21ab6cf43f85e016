"""`kvchat doctor` with a program that answers like llama-server."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvchat.__main__ import main
from kvchat.cli.doctor import collect_report, format_lines, is_healthy
from kvchat.engine.discovery.engines import REQUIRED_OPTIONS
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.gguf.facts import model_identity
from kvchat.session.restore_support import FindingKey, RestoreFinding, Strategy, newest_finding, store_finding
from kvchat.settings import Settings, load_settings, save_settings
from kvchat.system.paths import Paths
from tests.engine_fixtures import make_program
from tests.library.gguf_files import write_gguf
from tests.systems import needs_pipes


@pytest.fixture(autouse=True)
def no_session_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    answers = {
        "--version": "version: 11434 (abc1234)",
        "--list-devices": "Available devices:\n  CUDA0: NVIDIA H200 (143156 MiB, 142000 MiB free)",
        "--help": "\n".join(f"{name} VALUE" for name in REQUIRED_OPTIONS),
    }
    return make_program(tmp_path / "llama-server", f"import sys; print({answers!r}[sys.argv[1]])")


@pytest.fixture
def settings(engine: Path, smollm2: Path) -> Settings:
    return Settings(model_path=str(smollm2), engine_path=str(engine))


def test_everything_is_found(paths, engine, smollm2, settings):
    report = collect_report(paths, settings)
    assert is_healthy(report)
    assert (report["engine"]["kind"], report["engine"]["path"]) == ("llama-server", str(engine))
    assert "11434" in report["engine"]["version"]
    assert report["engine"]["devices"][0].name == "CUDA0"
    assert (report["model"]["quantisation"], report["model"]["size"]) == ("Q4_1", smollm2.stat().st_size)
    assert report["model"]["kv_bytes_per_token"] == 23_040
    assert report["context"].tokens == 8192
    assert "free on the GPU" in report["context"].memory_note  # like the app, it counts the engine's devices
    text = "\n".join(format_lines(report))
    for part in (str(engine), "NVIDIA H200, 148.9 GB free", "Q4_1, 98 MB", "8,192 tokens: the full", str(smollm2)):
        assert part in text
    text = "\n".join(format_lines(collect_report(paths, replace(settings, context_size=16_384))))
    assert "set by you" in text
    assert "trained for 8,192" in text


def store_test_result(paths: Paths, model: str, strategy: Strategy) -> None:
    subject = FindingKey(Fingerprint(model, "f16", "f16", "auto", 1, ""), "version: 11434 (abc1234)")
    store_finding(paths.restore_findings, subject, RestoreFinding(strategy, proved=True), 0.0)


def test_restore_capabilities_are_shown_once_known_and_can_be_deleted(paths, smollm2, settings, run):
    assert "not tested yet" in "\n".join(format_lines(collect_report(paths, settings)))
    save_settings(paths.settings_file, settings)
    assert main(["doctor", "--retest"]) == 0  # there are none yet
    assert not paths.restore_findings.exists()
    for model in (model_identity(smollm2), "another"):
        store_test_result(paths, model, Strategy.PLAIN)
    report = collect_report(paths, settings)
    description = RestoreFinding(Strategy.PLAIN, True).description
    build = "version: 11434 (abc1234)"
    assert report["restoring"] == {"strategy": "plain", "words": description, "build": build}
    text = "\n".join(format_lines(report))
    assert "restoring     Chat memory works with this engine and model" in text
    assert "engine: version: 11434" in text
    assert "not tested yet" in run("doctor", "--retest").out
    assert newest_finding(paths.restore_findings, "another") is not None


@needs_pipes
def test_a_pipe_or_nonsense_in_place_of_the_findings_is_ignored(paths):
    paths.ensure()
    os.mkfifo(paths.restore_findings)
    assert newest_finding(paths.restore_findings, "a") is None
    paths.restore_findings.unlink()
    store_test_result(paths, "a", Strategy.NONE)
    rows = json.loads(paths.restore_findings.read_text("utf-8"))
    for nonsense in (5, "of the moon"):
        paths.restore_findings.write_text(json.dumps([row | {"strategy": nonsense} for row in rows]))
        assert newest_finding(paths.restore_findings, "a") is None


def test_the_report_changes_nothing(paths, engine):
    report = collect_report(paths, Settings(engine_path=str(engine)))
    assert is_healthy(report), "no model yet is no fault"
    assert "none chosen" in "\n".join(format_lines(report))
    assert not paths.config.parent.exists()
    assert not any(folder["exists"] for folder in report["directories"])
    assert report["free_disk_bytes"] > 0
    assert "(not created yet)" in "\n".join(format_lines(report))


def test_a_damaged_model_or_an_unusable_engine_is_a_fault(paths, engine, tmp_path):
    def fault(**settings: str) -> str:
        report = collect_report(paths, Settings(**settings))
        assert not is_healthy(report)
        return "\n".join(format_lines(report))

    cut = tmp_path / "cut.gguf"
    cut.write_bytes(write_gguf(tmp_path / "whole.gguf").read_bytes()[:-2000])
    assert "The model file is incomplete" in fault(model_path=str(cut), engine_path=str(engine))
    assert "not found" in fault(engine_path=str(tmp_path / "other-server"))
    code = "import sys; print('error while loading shared libraries: libggml.so'); sys.exit(127)"
    program = make_program(tmp_path / "other-server", code)
    assert "libggml.so" in fault(engine_path=str(program))
    report = collect_report(paths, Settings(engine_url="http://127.0.0.1:8080", engine_path="/nowhere"))
    assert is_healthy(report), "an external server is not probed"
    text = "\n".join(format_lines(report))
    assert "http://127.0.0.1:8080" in text
    assert "CPU only" not in text


def test_the_report_as_json_and_its_exit_code(paths, settings, run_json, run):
    save_settings(paths.settings_file, settings)
    report = run_json("doctor")
    assert report["engine"]["kind"] == "llama-server"
    assert report["context"]["tokens"] == 8192
    assert report["context"]["reason"].startswith("8,192 tokens")
    keys = (
        "tokens reason memory_note kv_bytes needed free fits bars offload_note fit_target without_gpu warning by_user"
    )
    assert set(report["context"]) == set(keys.split())
    keys = "device free margin weights kv compute other measured staging"
    assert set(report["context"]["bars"][0]) == set(keys.split())
    assert set(report["memory"]) == {"available", "is_limited", "devices", "total", "staging_capacity"}
    assert set(report["memory"]["devices"][0]) == {"name", "free"}
    assert set(report["engine"]["devices"][0]) == {"name", "description", "total_bytes", "free_bytes"}
    assert report["tray"]["presence"] in ("available", "missing", "unknown")
    assert {entry["name"] for entry in report["directories"]} >= {"config", "data", "save points"}
    save_settings(paths.settings_file, replace(settings, model_path="/nowhere.gguf"))
    assert "The model file is missing" in run("doctor", code=1).out
    report = run_json("doctor", "--model", str(settings.model_path))
    assert (report["model"]["path"], report["model"]["usable"]) == (settings.model_path, True)
    assert load_settings(paths.settings_file).model_path == str(Path("/nowhere.gguf")), "--model is not saved"


@pytest.mark.engine
def test_the_report_with_the_embedded_engine(paths, tmp_path):
    command = [sys.executable, "-m", "kvchat", "doctor", "--json"]
    environment = {**os.environ, "PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    engine = json.loads(done.stdout)["engine"]
    if engine["kind"] == "embedded":  # a llama-server in a usual install place comes first
        assert engine["path"] is None
        assert engine["version"].startswith("xllamacpp ")
    assert engine["problem"] == ""
