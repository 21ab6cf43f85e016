"""Diagnosis of exits from real log lines: xllamacpp 2026.10.11549 and llama-server b11434, except where noted."""

import signal

import pytest

from kvchat.engine import embedded
from kvchat.engine.api import errors
from kvchat.engine.api.errors import FailureKind
from kvchat.engine.discovery.engines import EngineLocation
from kvchat.engine.process.child import ProcessExit
from tests.systems import needs_signals

NO_MEMORY = """\
0.00.006.018 I srv    load_model: loading model '/m/SmolLM2.gguf'
0.00.291.553 W llama_context: n_ctx_seq (200192) > n_ctx_train (8192) -- possible training context overflow
0.00.296.764 E ggml_aligned_malloc: insufficient memory (attempted to allocate 4398.75 MB)
0.00.296.928 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 4612423680
0.00.297.127 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache
0.00.297.153 E srv    load_model: failed to create_context with model '/m/SmolLM2.gguf'
0.00.298.308 E srv  llama_server: exiting due to model loading error"""
NOT_A_MODEL = """\
0.00.006.306 I srv    load_model: loading model '/m/bad.gguf'
0.00.006.975 E gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'
0.00.007.166 E llama_model_load: error loading model: llama_model_loader: failed to load model from /m/bad.gguf
0.00.008.752 E srv  llama_server: exiting due to model loading error"""
CUT_MODEL = """\
0.00.026.668 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file bounds, \
model is corrupted or incomplete
0.00.044.551 E srv    load_model: failed to load model, 'trunc.gguf'
Failed to init server, please check the input params."""
PORT = """\
0.00.002.800 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 45674
0.00.002.914 E srv          init: exiting due to HTTP server error"""
QUANTISED_V = """\
0.00.182.488 E llama_init_from_model: quantized V cache requires flash_attn to be enabled
0.00.200.891 E common_fit_params: encountered an error while trying to fit params to free device memory: failed to \
create llama_context from model
0.00.345.301 E llama_init_from_model: quantized V cache requires flash_attn to be enabled
0.00.345.324 E cmn  common_init_: failed to create context with model '/m/SmolLM2.gguf'
0.00.345.334 E srv    load_model: failed to create_context with model '/m/SmolLM2.gguf'
0.00.346.348 E srv  llama_server: exiting due to model loading error"""
# The same message from libllama's strings, logged when "auto" finds a device without flash attention.
QUANTISED_V_AUTO = (
    "E llama_init_from_model: failed to initialize the context: quantized V cache was requested, but this requires "
    "Flash Attention"
)
# The wordings of CUDA, Vulkan and Metal, of the C++ runtime, of ld.so and dyld are from their sources.
CUDA = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory"
)
VULKAN = "ggml_vulkan: Device memory allocation of size 1 failed.\nvk::Device::allocateMemory: ErrorOutOfDeviceMemory"
METAL = "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
CUDA_RESET = "CUDA error: unspecified launch failure\n/src/ggml-cuda.cu:99: CUDA error"
VULKAN_RESET = (
    "terminate called after throwing an instance of 'vk::DeviceLostError'\nvk::Queue::submit: ErrorDeviceLost"
)
BACKTRACE = """
30\t../sysdeps/unix/sysv/linux/wait4.c: No such file or directory.
#1  0x0000557bb523e11b in ggml_print_backtrace ()
#2  0x0000557bb523e268 in ggml_abort ()"""
WORKER_ABSENT = f"/src/ggml-rpc/ggml-rpc.cpp:547: Failed to connect to den:50052\n{BACKTRACE}"
WORKER_DIED = f"/src/ggml-rpc/ggml-rpc.cpp:569: Remote RPC server crashed or returned malformed response\n{BACKTRACE}"
BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"
LD_SO = "llama-server: error while loading shared libraries: libggml.so.0: cannot open shared object file"
DYLD = "dyld[99]: Library not loaded: @rpath/libllama.dylib"


@pytest.mark.parametrize(
    ("code", "log", "kind"),
    [
        (1, NO_MEMORY, FailureKind.OUT_OF_MEMORY),
        (1, CUDA, FailureKind.OUT_OF_MEMORY),
        (1, VULKAN, FailureKind.OUT_OF_MEMORY),
        (1, METAL, FailureKind.OUT_OF_MEMORY),
        (-6, BAD_ALLOC, FailureKind.OUT_OF_MEMORY),
        (-6, CUDA_RESET, FailureKind.GPU_LOST),
        (-6, VULKAN_RESET, FailureKind.GPU_LOST),
        (1, NOT_A_MODEL, FailureKind.BAD_MODEL),
        (embedded.EXIT_LOAD_FAILED, CUT_MODEL, FailureKind.BAD_MODEL),
        (1, "E llama_model_load: error loading model: unknown model architecture: 'new'", FailureKind.BAD_MODEL),
        (1, "E llama_model_load: error loading model: missing tensor 'output.weight'", FailureKind.BAD_MODEL),
        (1, PORT, FailureKind.PORT_TAKEN),
        (127, LD_SO, FailureKind.MISSING_LIBRARY),
        (-6, DYLD, FailureKind.MISSING_LIBRARY),
        (0xC0000135, "", FailureKind.MISSING_LIBRARY),
        (127, "/opt/llama-server: not found", FailureKind.NOT_FOUND),
        (126, "/opt/llama-server: cannot execute: [Errno 8] Exec format error", FailureKind.NOT_FOUND),
        (embedded.EXIT_NOT_INSTALLED, "cannot import xllamacpp: No module named 'x'", FailureKind.NOT_FOUND),
        (1, "error: invalid argument: --kv-unified", FailureKind.INCOMPATIBLE),
        (1, QUANTISED_V, FailureKind.INCOMPATIBLE),
        (1, f"{NOT_A_MODEL}\nE srv    load_model: failed to load draft model, '/d.gguf'", FailureKind.INCOMPATIBLE),
        (1, "W llama_init_from_model: MTP requested but model doesn't contain MTP layers", FailureKind.INCOMPATIBLE),
        (1, f"{QUANTISED_V_AUTO}\nE srv load_model: failed to load model, 'm.gguf'", FailureKind.INCOMPATIBLE),
        (-4, "", FailureKind.UNSUPPORTED_CPU),
        (-6, "/src/llama-kv-cache.cpp:99: GGML_ASSERT(n > 0) failed", FailureKind.CRASHED),
        (-11, "", FailureKind.CRASHED),
        (0xC0000005, "", FailureKind.CRASHED),
        (0xC000013A, "", FailureKind.EXITED),
        (0xFFFFFFFF, "", FailureKind.EXITED),
        (-9, "", FailureKind.KILLED),
        (-15, "", FailureKind.KILLED),
        (3, "", FailureKind.EXITED),
        (0, "", FailureKind.EXITED),
    ],
)
def test_kinds(code: int, log: str, kind: FailureKind) -> None:
    failure = ProcessExit(code, tuple(log.splitlines())).explain()
    assert failure.kind is kind
    assert failure.title
    assert failure.detail
    assert failure.advice


def test_detail_is_the_first_matching_line() -> None:
    failure = ProcessExit(1, tuple(NOT_A_MODEL.splitlines())).explain()
    assert failure.detail == "gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'"
    lines = ("0.00.001.000 E srv x: it broke", "0.00.002.000 I bye")
    assert ProcessExit(3, lines).explain().detail == "It exited with code 3. Last output: it broke"
    crashed = WORKER_DIED.replace("ggml-rpc/ggml-rpc.cpp:569: Remote RPC server", "ggml.c:9: A thing").splitlines()
    failure = ProcessExit(-6, tuple(crashed)).explain()  # the backtrace must not be reported as the reason
    assert (failure.kind, failure.detail) == (
        FailureKind.CRASHED,
        "/src/ggml.c:9: A thing crashed or returned malformed response",
    )


def test_lost_worker_is_named() -> None:
    absent = ProcessExit(-6, tuple(WORKER_ABSENT.splitlines())).explain()
    assert absent.kind is FailureKind.WORKER_LOST
    assert absent.detail == "There is no response from the RPC server den:50052."
    assert errors.WORKER_LOST.find(WORKER_ABSENT.splitlines()) == absent
    assert errors.WORKER_LOST.find(NOT_A_MODEL.splitlines()) is None
    lost = ProcessExit(-6, tuple(WORKER_DIED.splitlines())).explain(was_ready=True)
    assert (lost.kind, lost.detail) == (FailureKind.WORKER_LOST, "An RPC server has stopped.")


@needs_signals
def test_old_output_does_not_explain_a_later_death() -> None:
    """An engine that served for hours has logged old errors, and SIGKILL leaves no message."""
    lines = ("failed to allocate a little", "error: invalid argument: temperature")
    assert ProcessExit(-9, lines).explain(was_ready=True).kind is FailureKind.KILLED
    assert ProcessExit(-9, out_of_memory=True).explain().kind is FailureKind.OUT_OF_MEMORY
    lines = ("error: invalid argument: temperature", "GGML_ASSERT(x) failed")
    assert ProcessExit(-signal.SIGABRT, lines).explain(was_ready=True).kind is FailureKind.CRASHED
    assert ProcessExit(1, lines[:1]).explain(was_ready=True).kind is FailureKind.EXITED


@pytest.mark.engine
def test_refusals_of_llama_server_b11434(real_llama_server: EngineLocation) -> None:
    server = (real_llama_server.path.parent / "libllama-server-impl.so").read_bytes()
    assert all(words.encode() in server for words in (errors.TOO_LONG, errors.CROWDED_OUT, "Compute error"))
    crowded = errors.EngineRefused(500, f"{errors.CROWDED_OUT}.")
    assert (crowded.crowded_out, crowded.too_long, crowded.is_engine_fault) == (True, False, False)
    long = errors.EngineRefused(400, "the request exceeds the available context size", errors.TOO_LONG)
    assert (long.crowded_out, long.too_long, long.is_engine_fault) == (False, True, False)
    assert errors.EngineRefused(500, "failed").is_engine_fault
