import os
import threading
from pathlib import Path

import pytest

from kvchat.engine.process.log import MIB, EngineLog, Level, Placement, filter_by_level, read_allocations
from tests.systems import has_mode


def test_lines_are_joined_and_bounded() -> None:
    log = EngineLog()
    for piece in ("on", "e\ntw", "ü".encode()[:1], "ü".encode()[1:], "\r\nthr"):
        log.feed(piece.encode() if isinstance(piece, str) else piece)
    assert log.lines == ("one", "twü", "thr")
    assert log.bytes_seen == 13  # any output counts, even without a line end
    log.end_line()
    log.feed(b"next\n")
    assert log.lines == ("one", "twü", "thr", "next")
    log = EngineLog(lines=3)
    log.feed(b"1\n2\n3\n4\n")
    assert log.lines == log.since_start == ("2", "3", "4")
    log.note_start(["llama-server", "-t", "4"])
    log.feed(b"5\n")
    assert (log.lines[-2:], log.since_start) == (("kvchat starts llama-server -t 4", "5"), ("5",))
    for _ in range(100):
        log.feed(b"x" * 1000)
    assert len(log.lines[-1]) <= 4_000


def test_file_is_private_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "state" / "engine.log"
    log = EngineLog(path, file_bytes=100)
    for number in range(50):
        log.feed(f"line {number:02}\n".encode())
    log.close()
    old = path.with_name("engine.log.1")
    assert has_mode(path, 0o600)
    assert has_mode(old, 0o600)
    assert path.stat().st_size + old.stat().st_size <= 220
    assert (old.read_text() + path.read_text()).endswith("line 49\n")
    log = EngineLog(path / "engine.log")  # it cannot be written
    log.feed(b"still here\n")
    assert log.lines == ("still here",)


def test_hanging_disk_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, answers, log = os.open, threading.Event(), EngineLog(tmp_path / "engine.log")
    monkeypatch.setattr(os, "open", lambda *asked: answers.wait() and opened(*asked))
    for number in range(20_000):
        log.feed(f"line {number}\n".encode())
    assert log.lines[-1] == "line 19999"
    answers.set()
    log.close()
    assert (tmp_path / "engine.log").read_text().startswith("line 0\nline 1\n")


LINES = """\
kvchat starts llama-server --model m.gguf
0.00.006.018 I srv    load_model: loading model
  continued
0.00.291.553 W llama_context: n_ctx_seq (200192) > n_ctx_train (8192)
0.00.296.764 E ggml_aligned_malloc: insufficient memory
what it could not have
0.00.300.000 D detail
terminate called after throwing an instance
12.00.300.000 I later""".splitlines()


def test_filter_by_level() -> None:
    assert len(filter_by_level(LINES, Level.DETAIL)) == 9
    assert filter_by_level(LINES, Level.WARNING) == [LINES[3], LINES[4], LINES[5], LINES[7]]
    assert filter_by_level(LINES, Level.ERROR) == [LINES[4], LINES[5], LINES[7]]


QUOTED = """\
0.00.001.000 I srv  update_slots: all slots are idle
parse: error parsing grammar: expecting ::= at unspeakable heron
next ::= "unspeakable error"

root ::= unspeakable
second ::= "unspeakable"
0.00.001.001 E failed to parse grammar
third ::= "unspeakable"
0.00.001.002 W srv    operator(): got exception: {"error":{"code":400,"message":"near unspeakable heron"}}
0.00.001.003 E slt  process: id 0 | task 3 | got exception: Failed to parse input at pos 5: unspeakable
0.00.001.004 I srv  load: downloading image from 'https://unspeakable.example/heron'
0.00.001.005 E srv  send_error: task id = 7, error: Failed to initialize samplers: unspeakable
0.00.001.006 I slot release: id 0 | task 7 | stop processing: n_tokens = 7
/src/ggml/src/ggml.c:22: GGML_ASSERT(x > 0) failed
terminate called after throwing an instance of 'std::runtime_error'
  what():  unspeakable
CUDA error: out of memory
"""


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_refused_requests_are_not_logged(tmp_path: Path, size: int) -> None:
    """The engine prints grammars that do not parse, and quotes messages it refuses."""
    log, shown, data = EngineLog(tmp_path / "engine.log"), set[str](), QUOTED.encode()
    for at in range(0, len(data), size):
        log.feed(data[at : at + size])
        shown |= set(log.lines[-1:])
    log.close()
    written = (tmp_path / "engine.log").read_text("utf-8").splitlines()
    logged = log.since_start
    assert list(log.lines) == list(logged) == written
    assert not [line for line in (*logged, *shown) if "unspeakable" in line]
    for text in ("all slots are idle", "failed to parse grammar", "got exception: …", "stop processing", "GGML_ASSERT"):
        assert any(text in line for line in logged), text
    assert logged[-3:] == (QUOTED.splitlines()[-3], "  what(): …", "CUDA error: out of memory")


# Log of a build of early 2026 with 11 of 17 layers on a Vulkan device.
GPU = """\
load_tensors: offloaded 11/17 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   303.85 MiB
load_tensors:      Vulkan0 model buffer size =   380.41 MiB
llama_context: n_ctx         = 8192
llama_context: Vulkan_Host  output buffer size =     0.19 MiB
llama_kv_cache:        CPU KV buffer size =    96.00 MiB
llama_kv_cache:    Vulkan0 KV buffer size =   160.00 MiB
sched_reserve: Flash Attention was auto, set to enabled
sched_reserve:    Vulkan0 compute buffer size =   100.00 MiB
sched_reserve: Vulkan_Host compute buffer size =    24.01 MiB
"""
# Excerpt of b11434's log at level 4; the last three lines are constructed from its source (src/llama-*.cpp).
HYBRID = """\
0.00.294.300 I llama_context: n_ctx                 = 16384
0.00.294.566 I llama_kv_cache:        CPU KV buffer size =   768.00 MiB
0.00.294.600 I llama_kv_cache: size =  768.00 MiB ( 16384 cells,  12 layers,  1/1 seqs), K (f16):  384.00 MiB
0.00.294.601 I llama_memory_recurrent:        CPU RS buffer size =     4.25 MiB
0.00.294.602 I llama_dsv4_comp_state:        CPU DSV4 hca state buffer size =     0.25 MiB
0.00.428.001 W resolve_fused_ops: Flash Attention not supported, set to disabled
"""
REPACKED = """\
0.00.261.104 I load_tensors:   CPU_Mapped model buffer size =   632.00 MiB
0.00.261.105 I load_tensors:   CPU_REPACK model buffer size =   541.60 MiB
0.00.428.658 I sched_reserve:        CPU compute buffer size =    18.64 MiB
"""


# From b11434's log at level 4: SmolLM2 on two RPC servers of one computer.
RPC = """\
0.01.207.815 I load_tensors: offloaded 31/31 layers to GPU
0.01.207.823 I load_tensors:   CPU_Mapped model buffer size =    28.69 MiB
0.01.207.824 I load_tensors: RPC0[127.0.0.1:39601] model buffer size =    33.82 MiB
0.01.207.824 I load_tensors: RPC0[127.0.0.1:41773] model buffer size =    58.28 MiB
0.01.982.910 I llama_context:        CPU  output buffer size =     0.19 MiB
0.01.990.576 I llama_kv_cache: RPC0[127.0.0.1:39601] KV buffer size =    48.00 MiB
0.02.093.579 I llama_kv_cache: RPC0[127.0.0.1:41773] KV buffer size =    42.00 MiB
0.02.390.267 I sched_reserve: RPC0[127.0.0.1:39601] compute buffer size =    43.05 MiB
0.02.398.580 I sched_reserve: RPC0[127.0.0.1:41773] compute buffer size =    32.91 MiB
0.02.398.598 I sched_reserve:        CPU compute buffer size =    27.32 MiB
"""


def test_allocations() -> None:
    found = read_allocations(GPU.splitlines())
    assert found.placement == Placement(11, 17)
    assert (found.bytes_on(None)["kv"], found.bytes_on("Vulkan0")["kv"]) == (96 * MIB, 160 * MIB)
    assert found.bytes_on(None)["weights"] == round(303.85 * MIB)
    assert found.bytes_on(None)["compute"] == round(0.19 * MIB) + round(24.01 * MIB)
    elsewhere = read_allocations(RPC.splitlines())
    assert elsewhere.placement.is_fully_on_gpu
    assert [elsewhere.bytes_on(f"RPC0[127.0.0.1:{port}]")["kv"] for port in (39601, 41773)] == [48 * MIB, 42 * MIB]
    assert elsewhere.bytes_on("RPC0[127.0.0.1:39601]")["weights"] == round(33.82 * MIB)
    assert elsewhere.bytes_on(None)["weights"] == round(28.69 * MIB)
    assert read_allocations(HYBRID.splitlines()).bytes_on(None)["kv"] == round(772.5 * MIB)  # with recurrent state
    assert read_allocations(REPACKED.splitlines()).bytes_on(None)["weights"] == 632 * MIB  # without the mapped pages
    unmapped = read_allocations(REPACKED.replace("CPU_Mapped", "       CPU").splitlines())
    assert unmapped.bytes_on(None)["weights"] == round(1173.6 * MIB)
    assert read_allocations(["srv  llama_server: model loaded", "llama_context: n_ctx = 4096"]) is None
    name = "CUDA0 (NVIDIA GeForce RTX 3060)"
    log = (  # as written by b11434 (common/fit.cpp, llama-model.cpp)
        f"0.00.100.001 I common_params_fit_impl:   - {name}: 49 layers,   6000 MiB used,   6000 MiB free\n"
        f"0.00.100.002 I common_params_fit_impl:   - {name}: 49 layers (12 overflowing), 11000 MiB used, 800 MiB free\n"
        "0.00.200.001 I load_tensors: offloaded 49/49 layers to GPU\n"
    )
    found = read_allocations((log + REPACKED).splitlines())
    assert found.placement == Placement(49, 49, 12)
    assert not found.placement.is_fully_on_gpu
    found = read_allocations(f"0.00.200.001 I load_tensors: offloaded 33/33 layers to GPU\n{REPACKED}".splitlines())
    assert found.placement == Placement(33, 33)
    assert found.placement.is_fully_on_gpu
