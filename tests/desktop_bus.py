"""A private session bus and display, and fake services on that bus."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jeepney import DBusAddress, HeaderFields, MessageType, new_error, new_method_return, new_signal
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import open_dbus_connection
from jeepney.low_level import Message

# No <servicedir>: nothing of the machine's own desktop is ever started through this bus.
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:dir={folder}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/></policy></busconfig>
"""
Answers = Callable[[str, tuple[Any, ...]], "tuple[str, tuple[Any, ...]] | None"]  # method, body -> signature, body


class Bus:
    def __init__(self, address: str) -> None:
        self.address = address
        self.played: list[Played] = []

    def play(self, name: str, path: str, interface: str, answers: Answers) -> Played:
        self.played.append(Played(self.address, name, path, interface, answers))
        return self.played[-1]


def skip_without(*programs: str) -> None:
    if missing := [name for name in programs if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")


class Display(NamedTuple):
    name: str
    server: subprocess.Popen[bytes]


@contextmanager
def display(size: str = "64x64", folder: Path | None = None) -> Iterator[Display]:
    """Start an X server. `folder`: for the file of its framebuffer."""
    skip_without("Xvfb")
    reader, writer = os.pipe()
    command = ["Xvfb", "-displayfd", str(writer), "-screen", "0", f"{size}x24", "-nolisten", "tcp", "-noreset"]
    command += ["-fbdir", str(folder)] if folder else []
    with subprocess.Popen(command, pass_fds=[writer], stderr=subprocess.DEVNULL) as server:
        os.close(writer)
        with os.fdopen(reader) as numbers:
            name = f":{numbers.readline().strip()}"
        try:
            yield Display(name, server)
        finally:
            server.terminate()


@contextmanager
def session_bus(folder: Path) -> Iterator[Bus]:
    skip_without("dbus-daemon")
    config = folder / "bus.conf"
    config.write_text(_CONFIG.format(folder=folder))
    command = ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
        assert daemon.stdout is not None
        bus = Bus(daemon.stdout.readline().decode().strip())
        try:
            yield bus
        finally:
            daemon.terminate()
            for service in bus.played:
                service.join()


class Played:
    """Fake service on its own thread. `answers` returns the reply to a method; None: an error."""

    def __init__(self, bus: str, name: str, path: str, interface: str, answers: Answers) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.sender = ""  # of the last call
        self._address, self._answers = DBusAddress(path, name, interface), answers
        self._connection = open_dbus_connection(bus)
        self._connection.send_and_get_reply(message_bus.RequestName(name))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def emit(self, signal: str, signature: str, *body: Any, path: str = "", interface: str = "") -> None:
        where = self._address
        emitter = DBusAddress(path or where.object_path, where.bus_name, interface or where.interface)
        self._connection.send(new_signal(emitter, signal, signature, body))

    def join(self) -> None:
        self._thread.join(60)
        self._connection.close()

    def _serve(self) -> None:
        while True:
            try:
                call = self._connection.receive()
            except (ConnectionError, OSError, ValueError):
                return
            if call.header.message_type == MessageType.method_call:
                self._connection.send(self._answer(call))

    def _answer(self, call: Message) -> Message:
        method = call.header.fields[HeaderFields.member]
        self.asked.append((method, call.body))
        self.sender = call.header.fields[HeaderFields.sender]
        answer = self._answers(method, call.body)
        if answer is None:
            return new_error(call, "org.freedesktop.DBus.Error.UnknownMethod")
        return new_method_return(call, *answer)
