from __future__ import annotations

from kvchat.engine.running.log import Placement, Purpose, read_allocations

MIB = 1024 * 1024

# What a build of early 2026 logs with 11 of 17 layers on a Vulkan device.
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
# Cut out of what b11434 logs at level 4; the last three lines are written after its source (src/llama-*.cpp).
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


def test_a_gpu_load() -> None:
    found = read_allocations(GPU.splitlines())
    assert found is not None
    assert found.placement == Placement(11, 17)
    assert found.bytes(Purpose.KV) == 256 * MIB
    assert found.bytes(Purpose.KV, on_host=False) == found.on("Vulkan0", Purpose.KV) == 160 * MIB
    assert found.bytes(Purpose.WEIGHTS, on_host=True) == round(303.85 * MIB)
    assert found.bytes(Purpose.COMPUTE, on_host=True) == round(0.19 * MIB) + round(24.01 * MIB)
    elsewhere = read_allocations(GPU.replace("Vulkan0", "RPC0[den:50052]").splitlines())
    assert elsewhere is not None
    assert elsewhere.on("RPC0", Purpose.KV) == 160 * MIB
    assert elsewhere.on("RPC", Purpose.KV) == 0


def test_what_fit_decided_is_read_from_the_log() -> None:
    """As b11434 writes it: common/fit.cpp, llama-model.cpp."""
    name = "CUDA0 (NVIDIA GeForce RTX 3060)"
    told = (
        f"0.00.100.001 I common_params_fit_impl:   - {name}: 49 layers,   6000 MiB used,   6000 MiB free\n"
        f"0.00.100.002 I common_params_fit_impl:   - {name}: 49 layers (12 overflowing), 11000 MiB used, 800 MiB free\n"
        "0.00.200.001 I load_tensors: offloaded 49/49 layers to GPU\n"
    )
    found = read_allocations((told + REPACKED).splitlines())
    assert found is not None
    assert found.placement == Placement(49, 49, 12)
    assert not found.placement.whole
    found = read_allocations(f"0.00.200.001 I load_tensors: offloaded 33/33 layers to GPU\n{REPACKED}".splitlines())
    assert found is not None
    assert found.placement == Placement(33, 33)
    assert found.placement.whole


def test_recurrent_state_counts_as_kv() -> None:
    found = read_allocations(HYBRID.splitlines())
    assert found is not None
    assert found.bytes(Purpose.KV) == round(772.5 * MIB)


def test_weights_repacked_for_the_processor_are_counted_once() -> None:
    """The mapped file's pages of repacked weights are read once and then given up."""
    found = read_allocations(REPACKED.splitlines())
    assert found is not None
    assert found.bytes(Purpose.WEIGHTS) == 632 * MIB
    unmapped = read_allocations(REPACKED.replace("CPU_Mapped", "       CPU").splitlines())
    assert unmapped is not None
    assert unmapped.bytes(Purpose.WEIGHTS) == round(1173.6 * MIB)


def test_a_log_that_tells_nothing() -> None:
    assert read_allocations([]) is None
    assert read_allocations(["srv  llama_server: model loaded", "llama_context: n_ctx = 4096"]) is None
