"""API server for other programs: answers their requests with the same engine and memory.

- **Access** (`server.py`, `checks.py`): one listener in the event loop (a client that streams while another sends 1
  MB blocks it for at most 50 ms); Host, Origin, key and size are checked before anything is read. At the limit, the
  connection that has owed something longest is dropped.
- **Dialects** (`gateway/dialects`): requests are passed on unchanged, and so are responses except usage and model
  names. The prompt's ids are made as the engine makes them.
- **Answers** (`runner.py`, `forwarder.py`): a slot that holds most of the prompt, the best state loaded into it
  (`session/lease.py`), a long rest processed in steps between which the window goes first, the request forwarded
  pinned to that slot (Anthropic's dialect cannot be pinned: the engine takes the slot with the longest prefix). A
  request whose body continues a slot's last one is forwarded at once, and its ids are found meanwhile, or
  afterwards if the response is immediate and in one piece; if they disagree, it is dropped and starts again. Then
  the slot is settled where the next request will begin, and saved under `program/NAME`. Sessions are recognized by
  the ids alone.
- **Records** (`records.py`): programs, counts, times and reasons; never prompt text.
  `gateway/diagnosis` finds why prompts diverge; its enabled rules rewrite requests before they are rendered.
"""
