"""One engine request and the slot it uses: load, stream, prove, settle and save, for any owner.

This package knows no conversations, messages, database or Qt. An owner is the id of the chat (or program) whose state
a slot holds.

- Every engine request goes through an `Exchange`: turns, summaries, titles and programs. However a request ends, the
  slot's record never claims more tokens than the slot holds. The self-test calls the steps one by one (`lease.py`).
- The allocator answers as many chats at a time as the engine has slots. Two conversations never share a slot, and none
  has two. What a slot already holds is never restored into it.
- States of hybrid, recurrent and sliding-window models cannot be cut. Such a state is usable only if the prompt extends
  it, and a new chat needs a save point exactly at the end of its system prompt (`save_system_prompt`).
- The engine's 200 proves nothing: the next request's `cache_n` decides between *disk*, *hot* and a *hollow restore*,
  which is set aside. Two hollow restores in a row make the strategy one step more cautious (`restore_support.py`).
- To settle, the history is rendered with two different next messages. The tokens that both prompts share are the turn
  boundary, and the slot is made to hold exactly those (`n_predict: 0`). Hybrid models need this, and it handles
  templates that drop earlier reasoning.
- The store accepts the engine's file only if its header has exactly the boundary's tokens and its size is the one that
  the engine reported.
"""
