"""A llama-server of this user on this computer, seen from outside: what it was started with."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import httpx2
import psutil

_VARIABLE_PREFIX = "LLAMA_ARG_"


@dataclass(frozen=True)
class RunningServer:
    """Its process and how it was started."""

    pid: int
    folder: Path  # the one it runs in
    arguments: tuple[str, ...]  # without the program
    variables: tuple[tuple[str, str], ...] = ()  # LLAMA_ARG_*, which are options as well

    def value_of(self, *names: str) -> str | None:
        """What follows an option, by any of its names."""
        for name, value in zip(self.arguments, self.arguments[1:], strict=False):
            if name.replace("_", "-") in names:
                return value
        return None

    @property
    def slot_folder(self) -> Path | None:
        """Where it keeps slot files, None if it does not."""
        value = self.value_of("--slot-save-path")
        return self.folder / value if value else None


def find_server(url: str) -> RunningServer | None:
    """The process that answers at this address; None if it is on another computer or not ours to look into."""
    address = httpx2.URL(url)
    if not _is_here(address.host):
        return None
    port = address.port or (443 if address.scheme == "https" else 80)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            listens = (c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in process.net_connections("tcp"))
            if any(listens):
                variables = {k: v for k, v in process.environ().items() if k.startswith(_VARIABLE_PREFIX)}
                command = process.cmdline()
                return RunningServer(
                    process.pid, Path(process.cwd()), tuple(command[1:]), tuple(sorted(variables.items()))
                )
    return None


def reachable_slot_folder(server: RunningServer, proc: Path = Path("/proc")) -> Path | None:
    """Where the server's slot files can be had; None where they cannot.

    No slot is touched to find out: another program may be using it. In a container the server's folder may be another
    than the one of that name here; Linux tells (`proc`).
    """
    folder = server.slot_folder
    try:
        if folder is None or not os.access(folder, os.R_OK | os.W_OK | os.X_OK) or not folder.is_dir():
            return None
        root = proc / str(server.pid) / "root"
        if proc.is_dir() and not folder.samefile(root / folder.relative_to(folder.anchor)):
            return None
    except OSError:
        return None
    return folder


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ip_address(host.strip("[]")).is_loopback
    return False
