"""Start options of an engine, and their conversion to the command line of each kind of engine."""

import dataclasses
import json
import os
import secrets
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path

from kvchat.engine import embedded
from kvchat.engine.discovery.arguments import KnownOptions
from kvchat.engine.discovery.engines import EngineLocation

HOST = "127.0.0.1"  # other computers cannot connect to the engine
IMPOSSIBLE_ORIGIN = "https://kvchat.invalid"  # no web page can have this origin (RFC 2606), so none may send requests
TRACE_VERBOSITY = 4  # llama-server's log level that includes memory use but no conversations

# Number of earlier sliding windows or recurrent states that the engine keeps, to go back to them. Newer builds include
# them in saves: with the default of 32, a save of 4K tokens was seven times as large (b11549, gemma3). The store does
# not need them, but settling a turn does if the template shortens the reply: with one checkpoint, the engine processed
# the whole conversation again; with two, only the reply (b11549, qwen35).
CONTEXT_CHECKPOINTS = 2

# Tokens that the engine processes at once. Small, because a cancelled request stops only between two batches. Prompts
# processed in steps of a multiple of this give the same result as in one step; with other steps, log probabilities
# differ by up to 0.2 (measured on a CPU).
BATCH_SIZE = 512

FULL_WINDOW_OPTION = "--swa-full"  # keeps the whole KV cache of models with a sliding window

MIB = 1024 * 1024

_MAX_WINDOWS_PATH = 200  # characters; programs like llama-server can open 259, including the name of a slot file

ParameterValue = str | int | bool | tuple[str, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """The start options of an engine, except for the API key, which is in the environment."""

    model: Path
    context_size: int  # tokens
    slot_path: Path  # folder for saving and restoring slot files; not used if it `embeds`
    port: int = 0  # 0: a free port, chosen at each start
    kv_type: str = "f16"
    batch_size: int = BATCH_SIZE  # tokens
    fit_target: int | None = None  # bytes that the engine leaves free on each GPU; None without a GPU
    without_gpu: bool = False  # use no GPU, because its memory ran out
    embeds: bool = False  # compute vectors of texts, with low priority
    projector: Path | None = None
    slots: int = 1  # parallel sequences sharing the context
    rpc_workers: tuple[str, ...] = ()  # host:port of each rpc-server sharing the work
    extra_arguments: tuple[str, ...] = ()  # the user's, checked
    known_options: KnownOptions | None = None  # the build's options; None: it supports all that kvchat uses


def llama_server_arguments(plan: LaunchPlan) -> list[str]:
    known_options = plan.known_options
    # Left out for builds that do not know them: those lack the features that these turn off.
    optional = [
        ["--kv-unified"],  # one KV stream: slot files stay valid for any --parallel
        ["--cache-ram", "0"],  # no cache of evicted prompts: the store does that
        ["--metrics"],
        ["--jinja"],  # now the default; older builds render differently without it
        ["--cors-origins", IMPOSSIBLE_ORIGIN],
        # Let the engine place the model on GPUs. Without one, this would only slow down the start.
        ["--fit", "off" if plan.fit_target is None else "on"],
        ["--ctx-checkpoints", str(CONTEXT_CHECKPOINTS)],
    ]
    if known_options is None or known_options.has_trace_level:  # without it, level 4 logs conversations
        optional.append(["--verbosity", str(TRACE_VERBOSITY)])
    if plan.fit_target is not None:
        optional.append(["--fit-target", str(plan.fit_target // MIB)])
    arguments = [
        *("--model", _engine_path(plan.model)),
        *("--host", HOST),
        *("--port", str(plan.port)),
        *("--ctx-size", str(plan.context_size)),
        *("--batch-size", str(plan.batch_size)),
        *(() if plan.embeds else ("--slot-save-path", _engine_path(plan.slot_path))),
        *("--parallel", str(plan.slots)),
        *("-ctk", plan.kv_type),
        *("-ctv", plan.kv_type),
    ]
    for option in optional:
        if known_options is None or known_options.find(option[0]):
            arguments += option
    if plan.embeds:
        arguments += ["--embeddings", "--ubatch-size", str(plan.batch_size)]
        if known_options is None or known_options.find("--prio"):
            arguments += ["--prio", "-1"]
        if known_options is None or known_options.find("--device"):
            arguments += ["--device", "none"]  # without layers, a GPU build would still open a GPU and use its memory
    if plan.without_gpu:
        arguments += ["--n-gpu-layers", "0"]
    if plan.projector is not None:
        arguments += ["--mmproj", _engine_path(plan.projector)]
    if plan.rpc_workers:
        arguments += ["--rpc", ",".join(plan.rpc_workers)]
    return [*arguments, *plan.extra_arguments]


def _engine_path(path: Path) -> str:
    r"""Return a path for the engine. On Windows, only the prefix \\?\ lets it open a long one."""
    text = str(path)
    is_long = sys.platform == "win32" and len(text) > _MAX_WINDOWS_PATH and not text.startswith("\\\\")
    return f"\\\\?\\{text}" if is_long else text


def embedded_parameters(plan: LaunchPlan) -> dict[str, ParameterValue]:
    fields: dict[str, ParameterValue] = {
        "model.path": _engine_path(plan.model),
        "hostnames": (HOST,),
        "port": plan.port,
        "n_ctx": plan.context_size,
        "n_batch": plan.batch_size,
        # With a separator at the end, because the engine only appends the file's name.
        "slot_save_path": "" if plan.embeds else _engine_path(plan.slot_path) + os.sep,
        "n_parallel": plan.slots,
        "kv_unified": True,
        "cache_type_k": plan.kv_type,
        "cache_type_v": plan.kv_type,
        "cache_ram_mib": 0,
        "endpoint_slots": True,
        "endpoint_metrics": True,
        "use_jinja": True,
        "cors_origins": IMPOSSIBLE_ORIGIN,
        "fit_params": sys.platform == "darwin",  # elsewhere the embedded engine is CPU-only
        "verbosity": TRACE_VERBOSITY,
        "n_ctx_checkpoints": CONTEXT_CHECKPOINTS,
    }
    if plan.embeds:
        fields |= {"embedding": True, "n_ubatch": plan.batch_size, "n_gpu_layers": 0, "cpuparams.priority": -1}
    if plan.projector is not None:
        fields["mmproj.path"] = _engine_path(plan.projector)
    return fields


# With glibc on Linux, memory in pages of 2 MB: a new engine restored a chat of 770 MB in 0.17 s instead of 0.20 s.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass(frozen=True)
class Invocation:
    """Command line and environment for one start.

    The API key is in the environment, because other users can read command lines.
    """

    plan: LaunchPlan  # with the chosen port
    command: tuple[str, ...]
    key: str = field(repr=False)
    environment: dict[str, str] = field(repr=False)
    working_folder: Path | None = None  # None: kvchat's

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self.plan.port}"


def make_invocation(location: EngineLocation, plan: LaunchPlan) -> Invocation:
    """Create an invocation with a new key and, if the plan has no port, a free one."""
    plan = dataclasses.replace(plan, port=plan.port or free_port(HOST))
    folder = None
    if location.path is None:
        command, key_variable = embedded.command(json.dumps(embedded_parameters(plan))), embedded.KEY_VARIABLE
    else:
        short = plan
        if sys.platform == "win32" and not str(plan.slot_path).isascii():
            # It checks the folder in the ANSI code page, but gets its name in UTF-8 (fs_is_directory in common.cpp).
            folder, short = plan.slot_path.parent, dataclasses.replace(plan, slot_path=Path(plan.slot_path.name))
        command, key_variable = [str(location.path), *llama_server_arguments(short)], "LLAMA_API_KEY"
    key = secrets.token_urlsafe(32)
    return Invocation(plan, tuple(command), key, _HUGE_PAGES | os.environ | {key_variable: key}, folder)


def free_port(host: str) -> int:
    """Return a port that is free now. Another program may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
