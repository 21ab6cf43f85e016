"""What a model takes of this computer's memory, and what fits: context size, offload, verdict.

`gguf/kv_cache.py` knows from a GGUF header what each layer keeps: rows for every token, rows inside a sliding window,
recurrent state. A test loads tiny models of three dozen architectures into the
real `llama-server` and compares with what it logs. `placement.py` adds weights (by their places in the tensor list)
and compute buffers, on the GPUs and beside them; `fitting.py` knows what fits, `context_size.py` chooses: the
context the model was trained for, or what leaves a margin. That is the most a chat may have; what is laid out at
first (`begin_with`) is what the chats used last need, because an engine fills all of it with zeros before it is
ready. Before a chat fills that, the engine is started again with more and the save point restored into it, in the
middle of a reply too (`session/exchange.py`; how much the chats need: `chat/context.py`). Where a
GPU cannot hold 16K tokens beside the whole model, a mixture's experts stay in the computer's memory first, then
whole layers.

**One decider.** The engine's own `--fit` is off: it measures the computer's memory by what is built in rather than
by what is free, and what it decides would be known only after the load. kvchat passes context size,
`--n-gpu-layers` and `--n-cpu-moe`, and shows the same numbers as bars (`MemoryBar`). Staging is a part of the
plan and gives way to a model: what is warm counts as memory that can be had, and before the engine starts the store
lets go of what is more than the plan leaves it (`EngineMemory.choose`, `MemoryFacts.staging_beside`).

**After the load** `engine/running/log.py` finds in the engine's log what it took (`--verbosity 4`), the bars become
measured ones, and `engine_host/managed.py` learns factors for this model, build and kind of device
(`corrections.py`): the next estimate is closer. A load that runs out of memory is tried again with half the
context, with a GPU from 16K tokens on with fewer layers on it, down to a floor; the user is told once, and the
share of memory that did suffice is remembered. It may have been another program's doing: more is tried again after
a day, and after twice as long each time that this fails, up to 32 days. What would help and has a price (a `q8_0`
cache, `--swa-full`, `-fa on`) is a `Proposal` (`proposals.py`), made where it buys something, and never taken
silently.
"""
