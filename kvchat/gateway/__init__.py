"""The gateway for other programs: their requests are answered by the same engine, with the same memory.

- **Access** (`server.py`, `checks.py`): one listener in the event loop (a client that streams while another sends 1 MB
  holds that up for no more than 50 ms); Host, Origin, key and size are checked before anything is read. Where there is
  no room, the connection that has owed something longest is dropped.
- **Dialects** (`gateway/dialects`): requests are passed on as they are, and so are answers but for usage and model
  names. The prompt's ids are made as the engine makes them.
- **Answers** (`answering.py`, `forwarder.py`): a slot that holds most of the prompt, the best state loaded into it
  (`session/lease.py`), a long rest read in steps between which the window goes first, the request forwarded pinned to
  that slot (Anthropic's dialect cannot be pinned: the engine takes the slot that has most of it). A request whose body
  goes on from a slot's last one is passed on at once and its ids are found meanwhile, or after an answer of one piece
  that comes at once; where they say otherwise it is dropped and begins again. Then the slot is settled where the next
  request will begin, and saved under `program/NAME`. Sessions are known by the ids alone.
- **Records** (`requests.py`, `metrics.py`): programs, counts, times and reasons; never a word of a prompt.
  `gateway/medicine` finds why prompts part, and its rules that are on mend requests before they are rendered.
"""
