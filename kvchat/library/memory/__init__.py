"""Memory needs of a model on this computer, the choice of its context size, and the verdict on whether it fits.

`demand.py` estimates the memory for weights, KV cache (`gguf/kv_cache.py`) and compute buffers, on each GPU and in main
memory. `context_size.py` chooses the maximum context: the trained one, or the largest that leaves a margin of memory.
The engine starts with as much as recent chats need, because it clears the whole KV cache before it is ready, and is
restarted with more when a chat needs it (`session/exchange.py`). If a GPU cannot hold 16K tokens beside the whole
model, part of the model stays in main memory.

**kvchat chooses the context, the engine places the layers.** With a GPU, llama-server is started with `--fit on` and
`--fit-target`: it measures the devices, including the projector (common/fit.cpp), and logs its decision. Without a GPU,
`--fit` is off, because it would take a second to read the header again and decide nothing. Before the engine starts,
the store deletes slot files in memory that the model leaves no room for (`ManagedEngine.choose`).

**After the load,** `engine/process/log.py` reads the allocations from the engine's log (`--verbosity 4`). A load that
runs out of memory is retried with half the context each time and, at 16K tokens, without the GPU. The context that
could be loaded is stored (`LoadLimits`). If the engine crashes twice during a load, as drivers do when their memory is
full, the GPU is not used (`engine/process/supervisor.py`).
"""
