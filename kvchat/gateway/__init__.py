"""API server for other programs: answers their requests with the same engine and memory.

- **Access** (`server.py`, `checks.py`): one listener in the event loop (a client that streams while another sends 1
  MB blocks it for at most 50 ms). Host, Origin, key and size are checked before anything is read. At the limit, the
  connection that has waited longest for its client is dropped.
- **Dialects** (`gateway/dialects`): requests and responses pass unchanged, except usage and model names in responses.
  kvchat renders and tokenizes the prompt as the engine does.
- **Answers** (`runner.py`, `forwarder.py`): each request gets the slot that holds most of its prompt, with the best
  state loaded into it (`session/lease.py`). If many tokens are left, they are processed in steps, between which the
  window's requests go first. The request is forwarded pinned to that slot; Anthropic's dialect cannot be pinned, so
  the engine takes the slot with the longest prefix. Then the slot is settled where the next request will begin, and
  saved under `program/NAME`. Sessions are recognized by token ids alone.
- **Records** (`records.py`): programs, counts, times and reasons; never prompt text. `gateway/diagnosis` finds why
  prompts diverge; its enabled rules rewrite requests before they are rendered.
"""
