"""Memory needs of a model on this computer, and what fits: context size and verdict.

`demand.py` adds weights and compute buffers to the KV cache of `gguf/kv_cache.py`, on the GPUs and beside them;
`context_size.py` chooses the maximum context: the trained one, or the largest that leaves a margin of memory. The
engine starts with as much as the chats used last need, because it zeroes the whole KV cache before it is ready; it is
restarted with more when a chat needs it (`session/exchange.py`). If a GPU cannot hold 16K tokens beside the whole
model, part of the model stays in the computer's memory.

**kvchat chooses the context, the engine the place.** With a GPU llama-server is started with `--fit on` and
`--fit-target`: it measures the devices, the projector included (common/fit.cpp); its decision is read from its log.
Without a GPU fit is off: it would read the header once more (a second) and decide nothing. Staging gives way to a
model: before the engine starts, the store releases memory beyond the plan (`ManagedEngine.choose`).

**After the load** `engine/process/log.py` reads the allocations from the engine's log (`--verbosity 4`). A load that
runs out of memory is retried with half the context each time; at 16K tokens, it is retried without the GPU, if any.
The context that loaded is remembered (`LoadLimits`).
"""
