"""A network of two namespaces on this computer, joined by a slow and lossy link. Needs Linux and root.

Many kernels are built without netem, so a process forwards the packets between two TUN devices instead:
`python -m tests.bench.link BOX LAPTOP DELAY LOSS`, with the devices' file descriptors, the seconds each way and the
share lost.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kvchat.cli.bench import BenchFailed

BOX_ADDRESS, LAPTOP_ADDRESS = "10.213.7.1", "10.213.7.2"
_SET_NAME, _TUN, _NO_HEADER, _NEW_NETWORK = 0x400454CA, 0x0001, 0x1000, 0x40000000  # of if_tun.h and sched.h


class Link:
    def __init__(self, box: str, devices: tuple[int, int]) -> None:
        """`box`: the namespace of the box; `devices`: file descriptors of the two ends."""
        self.box, self._devices = box, devices

    @contextlib.contextmanager
    def up(self, round_trip_s: float, loss: float) -> Iterator[None]:
        """Forward packets; in each direction, delay them by half the round trip and lose a share of them."""
        devices = tuple(map(str, self._devices))
        command = [sys.executable, "-m", "tests.bench.link", *devices, str(round_trip_s / 2), str(loss)]
        with subprocess.Popen(command, pass_fds=self._devices) as forwarder:
            try:
                yield
            finally:
                forwarder.terminate()


@contextlib.contextmanager
def joined_namespaces() -> Iterator[Link]:
    """Create both namespaces; the calling thread and its children are on the laptop meanwhile. Raises BenchFailed."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise BenchFailed("This benchmark needs Linux and root", "It creates two network namespaces.")
    box, laptop = (f"kvchat-{side}-{os.getpid()}" for side in ("box", "laptop"))
    with contextlib.ExitStack() as stack:
        devices = []
        for namespace, address in ((box, BOX_ADDRESS), (laptop, LAPTOP_ADDRESS)):
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "delete", namespace)
            device = os.open("/dev/net/tun", os.O_RDWR)
            stack.callback(os.close, device)
            name = f"kv{len(devices)}-{os.getpid()}"
            fcntl.ioctl(device, _SET_NAME, struct.pack("16sH", name.encode(), _TUN | _NO_HEADER))
            _ip("link", "set", name, "netns", namespace)
            _ip("-n", namespace, "address", "add", f"{address}/24", "dev", name)
            for interface in ("lo", name):
                _ip("-n", namespace, "link", "set", interface, "up")
            devices.append(device)
        stack.enter_context(_in_namespace(f"/run/netns/{laptop}"))
        yield Link(box, (devices[0], devices[1]))


@contextlib.contextmanager
def _in_namespace(path: str) -> Iterator[None]:
    with Path("/proc/self/ns/net").open() as before, Path(path).open() as namespace:
        _enter(namespace.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _NEW_NETWORK):
        raise BenchFailed("The network namespace cannot be entered", os.strerror(ctypes.get_errno()))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _forward(devices: tuple[int, int], delay_s: float, loss: float) -> None:
    chance, waiting = random.Random(1), list[tuple[float, int, bytes]]()  # of losses
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select(devices, [], [], timeout)[0]:
            packet = os.read(device, 65_536)
            if chance.random() >= loss:
                other = devices[devices[0] == device]
                heapq.heappush(waiting, (time.monotonic() + delay_s, other, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _due, device, packet = heapq.heappop(waiting)
            os.write(device, packet)


if __name__ == "__main__":
    _forward((int(sys.argv[1]), int(sys.argv[2])), float(sys.argv[3]), float(sys.argv[4]))
