"""The door for other programs: what they ask is answered by the same engine, with the same memory.

- **In** (`server.py`, `checks.py`): one listener in the event loop there is (a client that streams while another sends
  1 MB holds that up for no more than 50 ms); Host, Origin, key and size are looked at before anything is read. Where
  there is no room, who has owed something longest leaves for who comes: the rest of a request, another one, taking an
  answer.
- **Understood** (`gateway/dialects`): requests are passed on as they are, and so are answers but for what they say of
  their cost and their model (`replies.py`). Of a request the prompt's ids are made as the engine makes them; of an
  answer the counts are heard, and the reply as the client will send it back.
- **Answered** (`answering.py`, `forwarder.py`): a slot that holds most of the prompt, the best state loaded into it
  (`session/lease.py`), a long rest read in steps between which the window goes first, the request forwarded pinned to
  that slot (Anthropic's dialect cannot be pinned: the engine takes the slot that has most of it, so that is seen to
  before), the engine's own count as proof. What goes on from a slot's last request, by its body, is passed on at once,
  and its ids are found meanwhile, or after an answer of one piece that comes at once; where they say otherwise it is
  dropped and begins again. Then the slot is settled
  where the next request will begin, and saved under `program/NAME`; where another needs it before that, or the client
  has left, what was read is saved. No session is asked for: those that go on from one another are known by their ids.
- **Told** (`requests.py`, `metrics.py`): programs, counts, times and why; never a word of a prompt. `gateway/medicine`
  finds why prompts part, and rules of it that are on mend requests before they are rendered (`mending.py`);
  `totals.py` keeps sums by program and day.
"""
