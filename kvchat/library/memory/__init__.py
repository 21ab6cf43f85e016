"""Memory needs of a model on this computer, and what fits: context size and verdict.

`demand.py` adds weights and compute buffers to the KV cache of `gguf/kv_cache.py`, on the GPUs and beside them;
`context_size.py` chooses the most a chat may have: what the model was trained for, or what leaves a margin. The engine
starts with what the chats used last need, because it fills all of it with zeros before it is ready; it is restarted
with more when a chat needs it (`session/exchange.py`). Where a GPU cannot hold 16K tokens beside the whole model, part
of the model stays in the computer's memory.

**kvchat chooses the context, the engine the place.** With a GPU llama-server is started with `--fit on` and
`--fit-target`: it measures the devices, the projector included (common/fit.cpp); its decision is read from its log.
Without a GPU fit is off: it would read the header once more (a second) and decide nothing. Staging gives way to a
model: before the engine starts the store releases what exceeds the plan (`ManagedEngine.choose`).

**After the load** `engine/process/log.py` finds in the engine's log what it took (`--verbosity 4`). A load that runs
out of memory is retried with half the context, with a GPU from 16K tokens on without it; the context that did suffice
is remembered (`LoadLimits`). What would help at a price is a `Proposal` (`verdict.py`), never applied silently.
"""
