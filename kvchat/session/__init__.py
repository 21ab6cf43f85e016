"""One request to the engine, and the slot it runs in: load, stream, prove, settle, save, for whoever owns it.

Below the chat: no conversation, no message, no database, no Qt. An owner is a text: whose a slot's contents are.

- **One exchange** (`session/exchange.py`) is under whatever asks the engine: turn, summary, title (and by them `ask`
  and `bench`) give it a `Request` and the owner of what the slot will hold, a conversation's id. It has an engine
  ready, makes the ids, finds room, loads, streams, proves and learns, and tells what happened as plain values,
  which the chat makes its events of (`EventBus.of_chat`). However a request ends, the slot is known to hold no more
  than it does. The self-test uses the steps one by one (`session/lease.py`).
- **Several slots, one allocator**. As many chats as the engine has slots are answered at a time and
  stay hot side by side. `session/allocator.py` says who has which, from load to save: whoever is waited for, the window
  before other programs, and in spare time what is most urgent (`Rank`). Slots
  do not share computing: beside somebody who is waited for nothing is read ahead, but a chat may be restored. Two
  conversations never mix, and none has two slots. What changes the engine has all slots to itself; who waits for that
  uses its own no more, so two never wait for each other. Turns stand in line (`Allocator.turn`), and one that
  waits can be put first. A `Slot` remembers what it holds (whose, which tokens, of which engine process:
  `generation`), and what is there already is never restored into it.
- **One context** (`session/slots.py`). The engine purges idle slots as it likes, fails all requests that together are
  too much, and refuses a restore without room in the words of a bad file. So room is made before anything is loaded.
  Programs' prompts are read step by step, in turn, and not while somebody at the window waits for a first word.
- **Load** asks the store for the save point that shares the longest prefix with the prompt, and has it verified,
  staged and restored if that leaves less to read than the slot as it is (`session/slot.py`, which forecasts ask,
  too). States of hybrid, recurrent and
  sliding-window models cannot be cut, so there a state counts only if the prompt extends it.
- **Does restoring work here?** (`session/self_test.py`, `session/restore_support.py`) When an engine comes up that was
  not seen before with this model and these flags, the host tries restoring out before it calls it ready: settle, save,
  erase, restore, extend, roll back, on a text and a store of its own, through the same `Lease` as every turn. The
  *strategy* found (plain, full window, complete, settle, none) is kept with the conversations; everything that asks
  whether states can be cut, completed or saved asks it. Two hollow restores in a row in real turns make it one step
  more careful. That it does not work, or that the engine died over it, is believed for a week, or until the user
  has it tried again.
- **Shared system prompts** (`session/settling.py`). Where states cannot be cut, a new chat needs a save point
  exactly at the end of its system prompt. The second chat with the same one, or the first where reading it takes
  seconds, stops there on its way through the prompt and saves; the receipt counts what it read as read.
- **Prove.** The engine's 200 proves nothing. The next request's `cache_n` decides between *disk*, *hot* and a
  *hollow restore*; the last is set aside and shown as a fault.
- **Settle.** The history is rendered with two different next messages; what both prompts share is the turn
  boundary. The slot is made to hold exactly that (`n_predict: 0`), so that the next prompt is an exact extension:
  hybrids need it, and it heals templates that drop reasoning. The next message of the same conversation may end the
  settling, if it has the slot next, and one of another conversation if it takes long; a save that has begun is finished
  (`session/lease.py`), at the end too, unless the user is told how long and does not want to wait
  (`session/slots.py`).
- **Save.** The engine writes into a slot folder; the store takes the file only if its header holds exactly the
  boundary's tokens and its size is what the engine said. An empty slot or another conversation's tokens are never
  kept. What the store writes it writes in the order it was asked (`Slots.write`): a chat's last file before the chat's
  deletion.
"""
