from __future__ import annotations

from kvchat.engine.allocations import Purpose, read_allocations

MIB = 1024 * 1024

# Cut out of what b11434 logs at level 4; the CUDA lines are in the same format, from the printf of src/llama-*.cpp.
GPU = """\
0.00.261.100 I load_tensors: offloaded 20/33 layers to GPU
0.00.261.104 I load_tensors:   CPU_Mapped model buffer size =  1825.40 MiB
0.00.261.105 I load_tensors:        CUDA0 model buffer size =  2892.02 MiB
0.00.294.300 I llama_context: n_ctx                 = 16384
0.00.294.422 I llama_context:        CPU  output buffer size =     0.50 MiB
0.00.294.566 I llama_kv_cache:        CPU KV buffer size =   768.00 MiB
0.00.294.567 I llama_kv_cache:      CUDA0 KV buffer size =  1280.00 MiB
0.00.294.600 I llama_kv_cache: size = 2048.00 MiB ( 16384 cells,  32 layers,  1/1 seqs), K (f16): 1024.00 MiB
0.00.294.601 I llama_memory_recurrent:      CUDA0 RS buffer size =     4.25 MiB
0.00.294.602 I llama_dsv4_comp_state:      CUDA0 DSV4 hca state buffer size =     0.25 MiB
0.00.428.001 W resolve_fused_ops: Flash Attention not supported, set to disabled
0.00.428.658 I sched_reserve:      CUDA0 compute buffer size =   560.00 MiB
0.00.428.659 I sched_reserve:  CUDA_Host compute buffer size =    24.01 MiB
"""
REPACKED = """\
0.00.261.104 I load_tensors:   CPU_Mapped model buffer size =   632.00 MiB
0.00.261.105 I load_tensors:   CPU_REPACK model buffer size =   541.60 MiB
0.00.428.658 I sched_reserve:        CPU compute buffer size =    18.64 MiB
"""


def test_a_gpu_load() -> None:
    found = read_allocations(GPU.splitlines())
    assert found is not None
    assert found.context_size == 16_384
    assert found.offloaded_layers == 20
    assert found.flash_attention_refused
    assert found.bytes(Purpose.KV) == round(2052.5 * MIB)
    assert found.bytes(Purpose.KV, on_host=False) == found.on("CUDA0", Purpose.KV) == round(1284.5 * MIB)
    assert found.bytes(Purpose.WEIGHTS, on_host=True) == round(1825.4 * MIB)
    assert found.bytes(Purpose.COMPUTE, on_host=True) == round(24.51 * MIB)


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
