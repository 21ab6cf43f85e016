"""Damaged stores, each put through all its operations: `python -m tests.kvstore.mutating ROUNDS SEED`.

1,000 rounds take less than a minute. Damage may cost save points, but never cause wrong bytes or an undocumented
exception.
"""

import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from kvchat.kvstore.savepoint import RestoreMiss, RestorePlan, StoreRefused, Tokens
from kvchat.system.migrations import DatabaseTooNew
from tests.kvstore.store_bench import Bench, Model, token_range

MODELS = (Model(layers=1, row_size=16), Model(layers=1, row_size=16, recurrent=True))
DOCUMENTED = (StoreRefused, DatabaseTooNew)
CHATS = {
    "thesis": [token_range(length) for length in (20, 45, 300, 700)],
    "letter": [token_range(300) + token_range(length, start=5000) for length in (40, 600)],
    "recipe": [token_range(90, start=9000)],
}
PROMPTS = [(*tokens, 4242) for turns in CHATS.values() for tokens in turns]
PROMPTS += [token_range(33), token_range(500), (7,) * 400]
_PAGE = 8192  # of the index
KINDS = ("bytes", "bits", "bits", "cut", "zeros", "swap", "append", "remove")


class WrongBytes(AssertionError):
    """The store would have given an engine the state of other tokens."""


def damage(dice: random.Random, path: Path) -> str:
    """Damage a file in one way, so that it differs; return which."""
    kind, before = dice.choice(KINDS), path.read_bytes()
    data = bytearray(before)
    while data == before and kind != "remove":
        if kind == "bytes":  # rarely in the first 4 KB of a large file
            first = 4096 if len(data) > 8192 and dice.random() < 0.8 else 0
            for _ in range(dice.choice((1, 5, 40, 200))):
                data[dice.randrange(first, len(data))] = dice.randrange(256)
        elif kind == "bits":  # where bytes are not zero: there the rows are
            places = [place for place in range(min(100, len(data) - 1), len(data)) if data[place]] or [0]
            for place in dice.sample(places, min(len(places), dice.choice((1, 3, 20)))):
                data[place] ^= 1 << dice.randrange(8)
        elif kind == "cut":
            del data[dice.randrange(len(data)) :]
        elif kind == "zeros":
            start = dice.randrange(max(1, len(data) // 512)) * 512
            data[start : start + 4096] = bytes(len(data[start : start + 4096])) if any(data) else b"x"
        elif kind == "swap" and len(data) > _PAGE:
            a, b = (_PAGE * dice.randrange(len(data) // _PAGE) for _ in range(2))
            data[a : a + _PAGE], data[b : b + _PAGE] = data[b : b + _PAGE], data[a : a + _PAGE]
        else:
            data += b"x"
    path.unlink() if kind == "remove" else path.write_bytes(data)
    return kind


def restore(bench: Bench, prompt: Tokens, **kwargs: object) -> RestoreMiss | None:
    """Restore the best save point for the prompt; return why there is none. Raises WrongBytes."""
    plan = bench.find(prompt, **kwargs)  # type: ignore[arg-type]
    staged = bench.restorer.stage(plan, bench.slots) if isinstance(plan, RestorePlan) else plan
    if isinstance(plan, RestoreMiss) or isinstance(staged, RestoreMiss):
        assert list(bench.slots.iterdir()) == []
        return staged if isinstance(staged, RestoreMiss) else None
    held = plan.save_point.tokens[: staged.n_tokens]
    data = bench.read(staged)
    if data != bench.model.slot_file(held) or held[: plan.tokens_used] != prompt[: plan.tokens_used]:
        raise WrongBytes(f"{len(data)} bytes for {len(held)} tokens")
    return None


def drive(dice: random.Random, bench: Bench, outcomes: Counter[str]) -> None:
    inventory = bench.inventory

    def restore_any() -> None:
        owner = dice.choice([*CHATS, "diary", "new"])
        miss = restore(bench, dice.choice(PROMPTS), can_cut=dice.random() < 0.5, conversation=owner)
        outcomes[miss.reason.code if miss else "restored"] += 1

    def save() -> None:
        bench.add(dice.choice([*CHATS, "diary"]), token_range(dice.randrange(1, 400), start=dice.choice((1, 5000))))
        bench.store.absorb_pending()

    actions: Sequence[Callable[[], object]] = [
        *(restore_any, restore_any, restore_any, save, save, inventory.usage, inventory.take_losses),
        lambda: inventory.find_unchecked("it"),
        lambda: inventory.prune(inventory.plan_prune(dice.choice((0, 150_000, 350_000)))),
        lambda: inventory.delete_messages("thesis", ["thesis 1"]),
        lambda: inventory.delete_conversation(dice.choice([*CHATS])),
        lambda: inventory.set_pinned("letter", True),
        inventory.verify,
    ]
    for action in (*dice.choices(actions, k=8), restore_any, save, inventory.usage):
        try:
            action()
        except DOCUMENTED as refusal:
            outcomes[str(refusal)[:150]] += 1


def run(rounds: int, seed: int) -> Counter[str]:
    """Damage and use `rounds` stores; return counts of outcomes. Raises WrongBytes and undocumented errors."""
    outcomes: Counter[str] = Counter()
    shm = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = tempfile.mkdtemp(dir=shm)
    try:  # a killed store has a thread that lives on for a moment: each round has a folder of its own
        for number, model in enumerate(MODELS):
            bench = Bench(Path(folder) / f"pristine {number}" / "store", model)
            for name, turns in CHATS.items():
                for turn, tokens in enumerate(turns):
                    bench.save(name, tokens, message=f"{name} {turn}")
            bench.inventory.set_never_save("diary", True)
            bench.store.close()
        for number in range(rounds):
            dice, kind = random.Random(f"{seed} {number}"), number % len(MODELS)
            store = Path(folder) / str(number) / "store"
            shutil.copytree(Path(folder) / f"pristine {kind}" / "store", store)
            blocks = sorted((store / "blocks").glob("??/*"))
            for path in [store / "index.db"] if dice.random() < 0.75 else dice.sample(blocks, dice.randrange(1, 4)):
                outcomes[damage(dice, path)] += 1
            try:
                bench = Bench(store, MODELS[kind], memory=dice.choice((0, 10**7)))
                drive(dice, bench, outcomes)
                if dice.random() < 0.7:
                    bench.store.close()  # else it is killed
                bench.restorer._background.shutdown()  # no thread outlives its process
            except DOCUMENTED as refusal:
                outcomes[str(refusal)[:150]] += 1
            except BaseException:
                print(f"store {number} of seed {seed}", file=sys.stderr)
                raise
            shutil.rmtree(store.parent, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # Windows keeps the open files of killed stores
    return outcomes


if __name__ == "__main__":
    for outcome, times in run(int(sys.argv[1]), int(sys.argv[2])).most_common():
        print(f"{times:6}  {outcome}")
