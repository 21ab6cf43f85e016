"""Stores with something wrong in them, each driven through all it can do.

`python -m tests.kvstore.mutating ROUNDS SEED`; 1,000 take less than a minute. What comes of it is a colder start, never
wrong bytes and no other exception than the documented ones.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kvchat.kvstore.savepoint import Miss, StoreRefused, Tokens
from kvchat.system.migrations import DatabaseTooNew
from tests.kvstore.true_files import Bench, Model

MODELS = (Model(layers=1, row_size=16), Model(layers=1, row_size=16, recurrent=True))
DOCUMENTED = (StoreRefused, DatabaseTooNew)


class WrongBytes(AssertionError):
    """An engine would have been given a state of something else."""


def text(length: int, start: int = 1) -> Tokens:
    return tuple(range(start, start + length))


CHATS = {
    "thesis": [text(20), text(45), text(300), text(700)],
    "letter": [text(300) + text(40, start=5000), text(300) + text(600, start=5000)],
    "recipe": [text(90, start=9000)],
}


def make(folder: Path, model: Model) -> None:
    bench = Bench(folder, model)
    for name, turns in CHATS.items():
        for number, tokens in enumerate(turns):
            bench.save(name, tokens, message=f"{name} {number}")
    bench.find((*text(45), 7))
    bench.inventory.never_save("diary", True)
    bench.store.close()


def flip(dice: random.Random, path: Path) -> None:
    """Some bytes of the file after the first 4 KB, or anywhere in one that is smaller, are others."""
    data = bytearray(path.read_bytes())
    first = 4096 if len(data) > 8192 and dice.random() < 0.8 else 0
    for _ in range(dice.choice((1, 5, 40, 200))):
        if len(data) > first:
            data[dice.randrange(first, len(data))] = dice.randrange(256)
    path.write_bytes(data)


def flip_words(dice: random.Random, path: Path) -> None:
    """Like `flip`, but near bytes that are not zero: there the rows are."""
    data = bytearray(path.read_bytes())
    there = [place for place in range(100, len(data)) if data[place]]
    for place in dice.sample(there, min(len(there), dice.choice((1, 3, 20)))):
        data[place] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def cut(dice: random.Random, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: dice.randrange(len(data) + 1)])


def blank(dice: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = dice.randrange(max(1, len(data) // 512)) * 512
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))
    path.write_bytes(data)


def swap(dice: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    pages = max(1, len(data) // 8192)
    one, two = (8192 * dice.randrange(pages) for _ in range(2))
    data[one : one + 8192], data[two : two + 8192] = data[two : two + 8192], data[one : one + 8192]
    path.write_bytes(data)


def remove(dice: random.Random, path: Path) -> None:
    path.unlink()


HOW: tuple[Callable[[random.Random, Path], None], ...] = (flip, flip_words, flip_words, cut, blank, swap, remove)


def mutate(dice: random.Random, folder: Path) -> str:
    how = dice.choice(HOW)
    blocks = sorted(path for path in (folder / "blocks").glob("??/*"))
    for path in [folder / "index.db"] if dice.random() < 0.75 else dice.sample(blocks, dice.randrange(1, 4)):
        how(dice, path)
    return how.__name__


def drive(dice: random.Random, bench: Bench, seen: Counter[str]) -> None:
    store = bench.store
    asked = [(*tokens, 4242) for turns in CHATS.values() for tokens in turns] + [text(33), text(500), (7,) * 400]

    def restore() -> None:
        prompt, can_cut = dice.choice(asked), dice.random() < 0.5
        plan = bench.find(prompt, can_cut=can_cut, conversation=dice.choice([*CHATS, "diary", "new"]))
        if isinstance(plan, Miss):
            seen[plan.reason.code] += 1
            return
        staged = store.restorer.stage(plan, bench.slots)
        if isinstance(staged, Miss):
            seen[staged.reason.code] += 1
            return
        held = plan.save_point.tokens[: staged.n_tokens]
        given = bench.read(staged)
        if given != bench.model.slot_file(held) or held[: plan.tokens_used] != prompt[: plan.tokens_used]:
            raise WrongBytes(f"{len(given)} bytes for {len(held)} tokens")
        seen["restored"] += 1

    def save() -> None:
        bench.take(dice.choice([*CHATS, "diary"]), text(dice.randrange(1, 400), start=dice.choice((1, 5000))))
        store.absorb_pending()

    deeds: list[Callable[[], object]] = [
        *(restore, restore, restore, save, save, store.inventory.usage, store.inventory.losses),
        lambda: store.inventory.unchecked("it"),
        lambda: store.inventory.prune(store.inventory.plan_prune(dice.choice((0, 150_000, 350_000)))),
        lambda: store.inventory.delete_messages("thesis", ["thesis 1"]),
        lambda: store.inventory.delete_conversation(dice.choice([*CHATS])),
        lambda: store.inventory.pin("letter", True),
        lambda: store.inventory.verify(),
    ]
    for _ in range(8):
        try:
            dice.choice(deeds)()
        except DOCUMENTED as refusal:
            seen[str(refusal)[:150]] += 1
    for last in (restore, save, store.inventory.usage):
        try:
            last()
        except DOCUMENTED as refusal:
            seen[str(refusal)[:150]] += 1


def run(rounds: int, seed: int) -> Counter[str]:
    """Mutate and drive so many stores; what came of it, how often. Raises WrongBytes and what is a bug."""
    seen: Counter[str] = Counter()
    shm = "/dev/shm" if Path("/dev/shm").is_dir() else None
    # A store that died has a thread that lives on for a moment: each round has a place of its own.
    with tempfile.TemporaryDirectory(dir=shm, ignore_cleanup_errors=True) as folder:
        for number, model in enumerate(MODELS):
            make(Path(folder) / f"pristine {number}" / "store", model)
        for number in range(rounds):
            dice, kind = random.Random(f"{seed} {number}"), number % len(MODELS)
            place = Path(folder) / str(number)
            shutil.copytree(Path(folder) / f"pristine {kind}" / "store", place / "store")
            seen[mutate(dice, place / "store")] += 1
            try:
                bench = Bench(place / "store", MODELS[kind], memory=dice.choice((0, 10**7)))
                drive(dice, bench, seen)
                if dice.random() < 0.7:
                    bench.store.close()  # else it is killed
                bench.restorer._background.shutdown()  # no thread outlives its process
            except DOCUMENTED as refusal:
                seen[str(refusal)[:150]] += 1
            except BaseException:
                print(f"store {number} of seed {seed}", file=sys.stderr)
                raise
            shutil.rmtree(place, ignore_errors=True)
    return seen


if __name__ == "__main__":
    for words, times in run(int(sys.argv[1]), int(sys.argv[2])).most_common():
        print(f"{times:6}  {words}")
