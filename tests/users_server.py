"""A llama-server started by the user, external to kvchat."""

import os
import socket
import subprocess
from dataclasses import replace
from itertools import count
from pathlib import Path

from kvchat.engine.process.external import ServerAddress
from kvchat.engine.process.plan import LaunchPlan, llama_server_arguments

KEY = "the-users-own-key"
# Below the ephemeral ports, and different for each test process, so that no other server answers.
_PORTS = count(20_000 + 500 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))


class UsersServer:
    def __init__(self, program: Path, plan: LaunchPlan, *, saves: bool = True) -> None:
        self.port = next(port for port in _PORTS if _free(port))
        self.address = ServerAddress(f"http://127.0.0.1:{self.port}", KEY)
        arguments = llama_server_arguments(replace(plan, port=self.port))
        if not saves:
            at = arguments.index("--slot-save-path")
            del arguments[at : at + 2]
        self._command = [str(program), *arguments]
        self._environment = os.environ | {"LLAMA_API_KEY": KEY, "LLAMA_ARG_MLOCK": "1"}
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(self._command, env=self._environment, stderr=subprocess.DEVNULL)
        return self.process

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
