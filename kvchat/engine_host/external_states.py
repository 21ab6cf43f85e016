"""Whether the states of a server that the user runs can be kept, and what that takes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from kvchat.engine.finding import extra_arguments
from kvchat.engine.finding.running_server import RunningServer, reachable_slot_folder
from kvchat.engine.speaking.wire import ServerFacts
from kvchat.engine_host.choice import promised_strategy, with_file_stamps
from kvchat.errors import KvchatError
from kvchat.kvstore.files import disk, presence
from kvchat.kvstore.savepoint import Fingerprint
from kvchat.library.gguf.facts import GgufFacts, read_facts
from kvchat.library.gguf.identity import model_identity
from kvchat.library.gguf.kv_cache import kv_bytes_per_token
from kvchat.session.strategy import Strategy


@dataclass(frozen=True)
class ServerStates:
    """What keeping the server's states takes."""

    folder: Path
    facts: GgufFacts
    fingerprint: Fingerprint
    kv_bytes_per_token: float
    promised: Strategy  # how far restoring should go, before it was tried


def states_of(process: RunningServer | None, facts: ServerFacts) -> ServerStates | None:
    """What keeping its states takes, None where it is not to be had: on another computer, or without a folder.

    Looks at the disk: call it off the event loop.
    """
    folder = reachable_slot_folder(process) if process is not None else None
    if process is None or folder is None:
        return None
    disk.remove_stale_for_engine(folder)  # of a kvchat that was killed
    with contextlib.suppress(OSError):
        presence.hold(folder)  # until this one ends
    try:
        return _read_states(process, folder, facts)
    except KvchatError:  # a model kvchat cannot read is no reason not to chat with it
        return None


def _read_states(process: RunningServer, folder: Path, facts: ServerFacts) -> ServerStates:
    model = process.folder / facts.model_path
    gguf = read_facts(model)
    type_k = process.value_of("-ctk", "--cache-type-k") or "f16"
    type_v = process.value_of("-ctv", "--cache-type-v") or "f16"
    # Everything it was started with may change what a state means; what certainly does not is left out.
    started_with = extra_arguments.meaning_of_server(process.arguments)
    variables = " ".join(f"{name}={value}" for name, value in process.variables)
    fingerprint = Fingerprint(
        model=model_identity(model),
        kv_type_k=type_k,
        kv_type_v=type_v,
        flash_attention="auto",
        streams=facts.total_slots,
        rope="",
        options=f"attached {with_file_stamps(started_with, process.folder)} {variables}".strip(),
        build=facts.build,
    )
    promised = promised_strategy(gguf, swa_full="--swa-full" in process.arguments)
    return ServerStates(folder, gguf, fingerprint, kv_bytes_per_token(gguf, type_k, type_v), promised)
