"""Memory needs of a model on this computer, and what fits: context size and verdict.

`gguf/kv_cache.py` knows from a GGUF header what each layer keeps: rows for every token, rows inside a sliding
window, recurrent state. A test loads tiny models of three dozen architectures into the real `llama-server` and
compares with its log. `demand.py` adds weights and compute buffers, on the GPUs and beside them; `context_size.py`
chooses: the context the model was trained for, or what leaves a margin. That is the most a chat may have; the
initial size (`begin_with`) is what the chats used last need, because an engine fills all of it with zeros before it
is ready. Before a chat fills that, the engine is restarted with more and the save point restored into it, in the
middle of a reply too (`session/exchange.py`; how much the chats need: `chat/context.py`). Where a GPU cannot hold
16K tokens beside the whole model, part of the model stays in the computer's memory.

**kvchat chooses the context, the engine the place.** With a GPU llama-server is started with `--fit on` and
`--fit-target`: given a context size it changes only what goes on the devices, a mixture's experts off them first,
and it measures them, the projector included (common/fit.cpp). Its decision is read from its log and shown
(`ContextChoice.with_placement`). Without a GPU fit is off: it would read the header once more (a second) and decide
nothing. Staging is part of the plan and gives way to a model: warm files count as available memory, and before the
engine starts the store releases what exceeds the plan (`EngineMemory.choose`, `MemoryFacts.staging_beside`).

**After the load** `engine/process/log.py` finds in the engine's log what it took (`--verbosity 4`), and the bars
show measured values. A load that runs out of memory is retried with half the context, with a GPU from 16K tokens on
without it, down to a floor; the user is told once, and the context that did suffice is remembered (`LoadLimits`).
Another program may have caused it: more is tried again after a day, and after twice as long each time that this
fails, up to 32 days. What would help at a price (a `q8_0` cache, `--swa-full`) is a `Proposal` (`verdict.py`), made
where it gains something, and never applied silently.
"""
