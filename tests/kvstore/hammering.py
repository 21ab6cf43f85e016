"""A process that uses a block store without end: `python -m tests.kvstore.hammering STORE SEED QUOTA`.

Prints a line after each round, and ends with a message when it is given wrong bytes. Stopped by killing it.
With `fork` for a seed it reads seeds instead, and forks a child for each: a hundred take no longer than one. It prints
"pid N" when a child begins and "ended S", with the status as of os.waitpid, when it has ended.
"""

from __future__ import annotations

import os
import random
import sys
from itertools import count
from pathlib import Path

from kvchat.kvstore.savepoint import Miss, StoreRefused
from tests.kvstore.true_files import HYBRID, Bench, is_damage

CONVERSATIONS = ("thesis", "letter", "recipe")


def tokens_of(dice: random.Random) -> tuple[int, ...]:
    return tuple(range(1, 41)) + tuple(range(100 * dice.randrange(4), 100 * dice.randrange(4) + dice.randrange(1, 90)))


def hammer(folder: Path, seed: int, quota: int) -> None:
    dice = random.Random(seed)
    bench = Bench(folder, HYBRID, quota=quota, memory=100_000 * (seed % 2))
    for number in count():
        tokens = tuple(t for t in tokens_of(dice) if t >= 0)
        try:
            bench.take(dice.choice(CONVERSATIONS), tokens)
            bench.store.absorb_pending()
            plan = bench.find((*tokens_of(dice), 7), can_cut=False)
            if not isinstance(plan, Miss):
                staged = bench.restorer.stage(plan, bench.slots)
                if isinstance(staged, Miss):
                    if is_damage(staged.reason):
                        sys.exit(f"found damage: {staged.reason.english}")
                elif bench.read(staged) != HYBRID.slot_file(plan.save_point.tokens):
                    sys.exit("was given wrong bytes")
            if dice.random() < 0.2:
                bench.inventory.prune(bench.inventory.plan_prune(quota // 3))
            if dice.random() < 0.1:
                bench.inventory.delete_conversation(dice.choice(CONVERSATIONS))
        except StoreRefused as refusal:
            if "quota" not in str(refusal):
                sys.exit(f"refused: {refusal}")
        say(number)


def say(what: object) -> None:
    """A line in one write: a process may be killed between the two of an unbuffered `print`."""
    os.write(1, f"{what}\n".encode())


def fork_for_each_line(folder: Path, quota: int) -> None:
    """Hammer in a child of this process, which has no threads, for each seed that is read."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                hammer(folder, int(line), quota)
            finally:
                os._exit(1)
        say(f"pid {pid}")
        say(f"ended {os.waitpid(pid, 0)[1]}")


if __name__ == "__main__":
    if sys.argv[2] == "fork":
        fork_for_each_line(Path(sys.argv[1]), int(sys.argv[3]))
    else:
        hammer(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
