"""Finding, running and calling llama-server.

- `discovery`: `engines.py` finds engines and asks each build for its version and options; too old builds are refused.
  `arguments.py` checks the user's extra arguments. `graphics.py` finds the backends for this computer's GPUs.
- `process`: `plan.py` makes the command line, with a new API key and without the user's `LLAMA_ARG_*` variables, which
  could change saved KV caches. `supervisor.py` starts, monitors and restarts the engine, and `child.py` explains
  crashes. `external.py` connects to a llama-server that the user runs. Its KV caches are saved only if its process and
  its slot folder are found on this computer.
- `api`: `client.py` sends requests through `transport.py`, the only module that connects; `response.py` reads answers.
- `embedded.py` and `system/parent_guard.py` run in processes of their own and import nothing of kvchat. The guard ends
  the engine with the app, even after SIGKILL.

The engine's own RAM cache of prompts is off (`--cache-ram 0`), because the store does the same and survives restarts.
"""
