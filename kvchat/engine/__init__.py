"""Finding, running and calling llama-server. Independent of conversations and save points.

- `discovery`: `engines.py` asks each build once for its number and `--help`: builds that are too old are refused,
  optional arguments it lacks are left out. `arguments.py` checks the user's own; those that change what a state means
  are in the fingerprint, with the files they name. `--rpc` workers are devices like GPUs.
- `process`: `plan.py` turns a `LaunchPlan` into the command line of llama-server or the embedded engine, with a fresh
  API key in the environment and without the user's `LLAMA_ARG_*` variables, which could change what a save point
  means. `supervisor.py` starts, watches and restarts with back-off; an `EngineMonitor` triggers replacement of an
  engine that hangs or cannot compute; `child.py` explains crashes. `external.py` connects to a llama-server that the
  user runs and never stops it; its states are kept only if its process and slot folder are found on this computer;
  all its arguments are in the fingerprint.
- `api`: `client.py` over `transport.py`, the only module that speaks HTTP. A streamed reply is read in
  batches: a wake-up per token would cost more than handling it.
- `embedded.py` and `parent_guard.py` run in processes of their own and import nothing of kvchat. The guard makes
  the engine die with the app, even by SIGKILL: on Linux by `PR_SET_PDEATHSIG`, elsewhere by a pipe.

The engine's own RAM cache of evicted prompts is off (`--cache-ram 0`): the store does that job and survives a
restart. The batch size is 512, because a dropped connection stops a prefill only between batches.
"""
