"""One start of an engine: its port, its key, its command line and its environment."""

from __future__ import annotations

import dataclasses
import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from kvchat.engine.child import embedded
from kvchat.engine.finding.discovery import EngineKind, EngineLocation
from kvchat.engine.running.plan import LaunchPlan, embedded_parameters, llama_server_arguments

_LLAMA_SERVER_KEY = "LLAMA_API_KEY"  # common/arg.cpp, --api-key


@dataclass(frozen=True)
class Invocation:
    """Everything one start needs. The key is in the environment alone: a command line is for every user to see."""

    plan: LaunchPlan  # with the port that was chosen
    command: tuple[str, ...]
    key: str = field(repr=False)
    environment: dict[str, str] = field(repr=False)

    @property
    def base_url(self) -> str:
        """Where the engine is going to answer."""
        return f"http://{self.plan.host}:{self.plan.port}"


def prepare(location: EngineLocation, plan: LaunchPlan) -> Invocation:
    """An invocation with a fresh key and, if the plan leaves it open, a free port."""
    plan = dataclasses.replace(plan, port=plan.port or free_port(plan.host))
    key = secrets.token_urlsafe(32)
    environment = dict(os.environ)
    if location.kind is EngineKind.EMBEDDED:
        command = embedded.command(embedded_parameters(plan).to_json())
        environment[embedded.KEY_VARIABLE] = key
    else:
        command = [str(location.path or Path("llama-server")), *llama_server_arguments(plan)]
        environment[_LLAMA_SERVER_KEY] = key
    return Invocation(plan, tuple(command), key, environment)


def free_port(host: str) -> int:
    """A port nobody listens on at this moment; the next moment somebody may."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
