"""API server for other programs, using the same engine and memory as the chat window.

- **Access** (`server.py`, `checks.py`): one listener in the event loop (blocked for at most 50 ms while one client
  streams and another sends 1 MB). Host, Origin and key are checked before the body is read. If there are too many
  connections, kvchat closes the one that has waited longest for its client.
- **Dialects** (`gateway/dialects`): requests and responses pass unchanged, except usage and model names in responses.
  kvchat renders and tokenizes the prompt as the engine does.
- **Answers** (`runner.py`, `forwarder.py`): each request gets the slot that holds most of its prompt, with the best
  state loaded into it (`session/lease.py`). If many tokens are left, they are processed in steps; between steps the
  chat window's requests go first. The request is forwarded pinned to that slot; Anthropic's dialect cannot be pinned,
  so the engine picks the slot with the longest matching prefix. Then the slot is made to hold exactly the tokens that
  the next request will start with, and saved under `program/NAME`. Sessions are recognized by token ids alone.
- **Records** (`records.py`): programs, counts, times and reasons; never prompt text. `gateway/diagnosis` finds why
  prompts diverge; its enabled rules rewrite requests before they are rendered.
"""
