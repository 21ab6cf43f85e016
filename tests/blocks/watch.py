"""Measures from another thread how long the event loop is blocked, and by what."""

import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal

BEAT_S, SAMPLE_AFTER_S, CHECK_INTERVAL_S = 0.004, 0.012, 0.002
MIN_BLOCK_S = 0.008
_FRAMES = 7  # of kvchat's own, the innermost, for each stack
_SELF = f"{Path(__file__).parent}"


@dataclass(frozen=True)
class Block:
    """A time in which the event loop was blocked. Milliseconds."""

    phase: str
    wall: float
    cpu: float  # the thread ran
    queued: float  # it waited for a core, also while it held the interpreter
    stack: str  # where it was most of the time

    @property
    def own(self) -> float:
        """Its own work, and waiting for the disk, a lock or another thread, but not for a core."""
        return max(self.wall - self.queued, 0.0)


class Watch(QObject):
    """Create it on the loop's thread; `phase`: the user's action."""

    _beat = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self.phase = "start"
        self.blocks: list[Block] = []
        self.beats: Counter[str] = Counter()
        self._main = threading.main_thread()
        self._clock = time.pthread_getcpuclockid(self._main.ident or 0)
        self._main_task = self._task(self._main)
        self._over = False
        self._answers: list[float] = []  # when the loop handled each beat
        self._beat.connect(lambda answered: (self._answers.append(time.perf_counter()), answered.set()))
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over = True
        self._thread.join()

    def _run(self) -> None:
        task = self._task(threading.current_thread())
        while not self._over:
            answered, stacks, phase = threading.Event(), Counter[str](), self.phase
            asleep, held, queued = time.perf_counter(), _queued(task), _queued(self._main_task)
            time.sleep(BEAT_S)
            begun, cpu = time.perf_counter(), time.clock_gettime(self._clock)
            # Waking late means that no core was free, or that a thread holds the interpreter.
            late = max(begun - asleep - BEAT_S - (_queued(task) - held), 0.0)
            self._beat.emit(answered)
            while not answered.wait(CHECK_INTERVAL_S) and not self._over:
                if time.perf_counter() - begun > SAMPLE_AFTER_S:
                    stacks[self._stack()] += 1
            wall = (self._answers.pop() if self._answers else time.perf_counter()) - begun
            ran = time.clock_gettime(self._clock) - cpu
            self.beats[phase] += 1
            if late + wall > MIN_BLOCK_S:
                if late > wall:
                    stacks["another thread held the interpreter"] += 1
                most = "\n".join(f"{count} x {stack}" for stack, count in stacks.most_common(2))
                figures = (late + wall, ran, _queued(self._main_task) - queued)
                self.blocks.append(Block(phase, *(1000 * figure for figure in figures), most))

    def _task(self, thread: threading.Thread) -> Path:
        return Path(f"/proc/self/task/{thread.native_id}")

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._main.ident or 0)
        summary = traceback.extract_stack(frame)
        ours = [frame for frame in summary if "/kvchat/" in frame.filename or _SELF in frame.filename]
        last = [] if not summary or summary[-1] in ours else [summary[-1]]
        lines = [f"{Path(frame.filename).stem}:{frame.lineno} {frame.name}" for frame in [*ours[-_FRAMES:], *last]]
        return " > ".join([*lines, (self._main_task / "syscall").read_text().split()[0]])


def _queued(task: Path) -> float:
    """Return the seconds a thread waited for a core."""
    return int((task / "schedstat").read_text().split()[1]) / 1e9
