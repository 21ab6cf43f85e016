"""What a model takes of this computer's memory, and what fits: context size and verdict.

`gguf/kv_cache.py` knows from a GGUF header what each layer keeps: rows for every token, rows inside a sliding window,
recurrent state. A test loads tiny models of three dozen architectures into the real `llama-server` and compares with
what it logs. `demand.py` adds weights and compute buffers, on the GPUs and beside them; `context_size.py` chooses: the
context the model was trained for, or what leaves a margin. That is the most a chat may have; what is laid out at
first (`begin_with`) is what the chats used last need, because an engine fills all of it with zeros before it is
ready. Before a chat fills that, the engine is started again with more and the save point restored into it, in the
middle of a reply too (`session/exchange.py`; how much the chats need: `chat/context.py`). Where a
GPU cannot hold 16K tokens beside the whole model, part of the model stays in the computer's memory.

**kvchat chooses the context, the engine the place.** With a GPU llama-server is started with `--fit on` and
`--fit-target`: given a context size it changes nothing but what goes on the devices, a mixture's experts off them
first, and it measures them, the projector included (common/fit.cpp). What it decided is read from its log and shown
(`ContextChoice.placed`). Without a GPU fit is off: it would read the header once more (a second) and decide nothing.
Staging is a part of the plan and gives way to a model: what is warm counts as memory that can be had, and before the
engine starts the store lets go of what is more than the plan leaves it (`EngineMemory.choose`,
`MemoryFacts.staging_beside`).

**After the load** `engine/running/log.py` finds in the engine's log what it took (`--verbosity 4`), and the bars
become measured ones. A load that runs out of memory is tried again with half the context, with a GPU from 16K tokens
on without it, down to a floor; the user is told once, and the context that did suffice is remembered (`limits.py`).
It may have been another program's doing: more is tried again after a day, and after twice as long each time that this
fails, up to 32 days. What would help and has a price (a `q8_0` cache, `--swa-full`) is a `Proposal` (`verdict.py`),
made where it buys something, and never taken silently.
"""
