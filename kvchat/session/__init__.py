"""One request to the engine and the slot it uses: load, stream, prove, settle, save, for any owner.

No conversation, no message, no database, no Qt. owner: id of the chat (or program) whose state a slot holds.

- One `Exchange` serves every engine request: turn, summary, title, program. However it ends, the slot's record never
  claims more tokens than the slot holds. The self-test uses the steps one by one (`lease.py`).
- The allocator answers as many chats at a time as the engine has slots. Two conversations never mix, and none has two
  slots. What a slot already holds is never restored into it.
- States of hybrid, recurrent and sliding-window models cannot be cut: there a state counts only if the prompt extends
  it, and a new chat needs a save point exactly at the end of its system prompt (`save_system_prompt`).
- The engine's 200 proves nothing: the next request's `cache_n` decides between *disk*, *hot* and a *hollow restore*,
  which is set aside. Two hollow restores in a row make the strategy one step more careful (`restore_support.py`).
- Settling renders the history with two different next messages; what both prompts share is the turn boundary, and the
  slot is made to hold exactly that (`n_predict: 0`): hybrids need it, and it fixes templates that drop reasoning.
- The store takes the engine's file only if its header holds exactly the boundary's tokens and its size is what the
  engine said.
"""
