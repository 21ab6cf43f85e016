"""One request to the engine and the slot it runs in: load, stream, prove, settle, save, for any owner.

Below the chat: no conversation, no message, no database, no Qt. owner: id of the chat (or program) whose state a
slot holds.

- **One exchange** (`exchange.py`) serves every engine request: turn, summary, title, program. It gets a ready
  engine, makes the ids, makes room, loads, streams, proves and learns, and reports events as plain values. However
  a request ends, the slot's record never exceeds its contents. The self-test uses the steps one by one
  (`lease.py`).
- **Several slots, one allocator** (`allocator.py`, `slot_request.py`). As many chats as the engine has slots are
  answered at a time.
  Two conversations never mix, and none has two slots. A `Slot` remembers what it holds (owner, tokens, `generation`
  of the engine process); what it already holds is never restored into it.
- **One context** (`slots.py`). The engine purges idle slots as it likes, fails all requests that together are too
  large, and refuses a restore without room with the error of a bad file. So room is made before anything is loaded.
- **Load** asks the store for the save point that shares the longest prefix with the prompt, and restores it if that
  leaves less to process than the slot as it is (`slot.py`). States of hybrid, recurrent and sliding-window models
  cannot be cut, so there a state counts only if the prompt extends it.
- **Self-test** (`self_test.py`, `restore_support.py`). When an engine starts with a new model or new flags,
  restoring is tested before it is called ready. The *strategy* found is kept on disk; two hollow restores in a row
  in real turns make it one step more careful.
- **Shared system prompts** (`prefill.py`). Where states cannot be cut, a new chat needs a save point exactly at
  the end of its system prompt. The second chat with the same one, or the first if processing it takes seconds,
  saves there.
- **Prove.** The engine's 200 proves nothing: the next request's `cache_n` decides between *disk*, *hot* and a
  *hollow restore*, which is set aside.
- **Settle.** The history is rendered with two different next messages; what both prompts share is the turn
  boundary, and the slot is made to hold exactly that (`n_predict: 0`): hybrids need it, and it fixes templates that
  drop reasoning. The next message of the same conversation may end the settling; a save that has begun is finished.
- **Save.** The store takes the engine's file only if its header holds exactly the boundary's tokens and its size is
  what the engine said. The store writes in request order (`Slots.write`).
"""
