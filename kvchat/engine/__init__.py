"""llama-server: finding one, running it, speaking to it. Knows no conversation and no save point.

`finding`: `discovery.py` asks a build once for its number and its `--help`: too old is refused, what it lacks and can
do without is left out. `arguments.py` checks the user's own; those that change what a state means are in the
fingerprint, with the files they name. `--rpc` workers are devices like GPUs, named as the log names
their buffers; one that does not answer aborts the engine, and `failure.py` says which.

`running`: `plan.py` turns one `LaunchPlan` into a start of either engine. The API key is fresh for each launch and
travels in the environment. The user's `LLAMA_ARG_*` variables are taken out of the engine's environment: options nobody
knows of would make save points mean something else. `supervisor.py` starts, watches and restarts with back-off;
`process.py` stops by a ladder and records the rung; a `Watch` has a ready engine replaced that hangs or can no longer
compute, and asks at once when words were coming and stopped; `failure.py` says in words why an engine died.
`external.py` talks to a llama-server that the user runs and never stops it; its states are kept only where
`find_server` finds the process on this computer and its slot folder is one of ours; what a killed kvchat left
there goes, known by its names. It works in the last free slot, and tries nothing out in one that another program may be
using. Everything it was started with is then part of the fingerprint.

`embedded.py` and `parent_guard.py` are run in processes of their own and import nothing of kvchat. The guard makes the
engine die with the app, even by SIGKILL: on Linux by `PR_SET_PDEATHSIG`, elsewhere by a pipe.

`speaking`: what a turn needs of an engine is `client.py`, over `transport.py`, the only place
that speaks HTTP. What a prompt shares with one before is tokenised once (`tokenizing.py`). A streamed reply is read in
batches: a wake-up per token would cost more than what is done with it.

The engine's own RAM cache of evicted prompts is off (`--cache-ram 0`): the store does that job, survives a restart,
and one mechanism is easier to be honest about than two. The batch size is 512, because a dropped connection stops a
prefill only between batches. Of the context checkpoints that it keeps of sliding windows and recurrent state, and
that newer builds write into each save, two are kept (`--ctx-checkpoints 2`): settling goes back to them after a
reply that the template shortens.
"""
