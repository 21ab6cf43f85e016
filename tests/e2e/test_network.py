"""kvchat needs and uses only the loopback network."""

import contextlib
import os
import subprocess
import sys
from ipaddress import ip_address
from typing import Any

import psutil
import pytest

from tests.e2e.home import Home, engine_arguments, notes
from tests.e2e.waiting import wait_until
from tests.models import tiny_model

pytestmark = pytest.mark.e2e

ENGINES = ("embedded", "llama-server")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows another process's sockets")
@pytest.mark.parametrize("engine", ENGINES)
def test_only_loopback_sockets_are_opened(tmp_path, engine):
    home = Home(tmp_path / "home")
    question = ("ask", "--new", "--max-tokens", "120", "--model", str(tiny_model("llama")), *engine_arguments(engine))
    ask_process = subprocess.Popen(
        [sys.executable, "-m", "kvchat", *question, notes(100)],
        env=os.environ | {"KVCHAT_HOME": str(home.folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    listening: set[str] = set()
    seen: set[str] = set()

    def over() -> bool:
        for connection in sockets_of(ask_process.pid):
            addresses = [address.ip for address in (connection.laddr, connection.raddr) if address]
            seen.update(addresses)
            if connection.status == psutil.CONN_LISTEN:
                listening.update(addresses)
        return ask_process.poll() is not None

    wait_until(over, seconds=240, what="the end of the reply")
    assert ask_process.returncode == 0
    assert listening == {"127.0.0.1"}  # the engine was seen
    assert [address for address in seen if not ip_address(address).is_loopback] == []


def sockets_of(pid: int) -> list[Any]:
    """Return all internet sockets of a process and its children now."""
    found: list[Any] = []
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for child in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it may be gone by now; the others are not
                found += child.net_connections("inet")
    return found
