"""llama-server: finding one, running it, speaking to it. Knows no conversation and no save point.

- `finding`: `discovery.py` asks a build once for its number and its `--help`: too old is refused, what it lacks and can
  do without is left out. `arguments.py` checks the user's own; those that change what a state means are in the
  fingerprint, with the files they name. `--rpc` workers are devices like GPUs.
- `running`: `plan.py` turns a `LaunchPlan` into a start of either engine, with a fresh API key in the environment and
  without the user's `LLAMA_ARG_*` variables, which could change what a save point means. `supervisor.py` starts,
  watches and restarts with back-off; a `Watch` has an engine replaced that hangs or can no longer compute; `failure.py`
  explains deaths. `external.py` talks to a llama-server that the user runs and never stops it; its states are kept only
  where its process and slot folder are found on this computer, and all it was started with is in the fingerprint.
- `speaking`: `client.py` over `transport.py`, the only place that speaks HTTP. A streamed reply is read in batches: a
  wake-up per token would cost more than what is done with it.
- `embedded.py` and `parent_guard.py` run in processes of their own and import nothing of kvchat. The guard makes the
  engine die with the app, even by SIGKILL: on Linux by `PR_SET_PDEATHSIG`, elsewhere by a pipe.

The engine's own RAM cache of evicted prompts is off (`--cache-ram 0`): the store does that job and survives a restart.
The batch size is 512, because a dropped connection stops a prefill only between batches.
"""
