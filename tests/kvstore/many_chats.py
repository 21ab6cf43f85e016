"""How long lookups and deletions take among very many chats: `python -m tests.kvstore.many_chats [CHATS]`.

Prints a line for each, in ms, the worst of a few, with the processor time. The chats share a template of 20 tokens, a
system prompt of 300, or one of 1,800; each has a save point for each of its turns, some of them not absorbed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kvchat.kvstore.blocks.layout import CacheRows, Region, RowMap, Run
from kvchat.kvstore.blocks.recipe import BlockUse, Recipe
from kvchat.kvstore.index import points as index_points
from kvchat.kvstore.index.token_tree import pack_tokens
from kvchat.kvstore.savepoint import CHATS_AUDIENCE, Miss, RestorePlan, SavePoint, Tokens
from tests.kvstore.store_bench import FINGERPRINT, Bench

CHATS, TURNS = 10_000, 3
SYSTEMS = (20, 300, 1800)  # tokens that the chats of a third each begin with
ROW_MAP = RowMap((CacheRows((Region(100, 64),), (Run(0, 0, 2000),)),))


def system(length: int) -> Tokens:
    return tuple(range(length, 2 * length))


def turn(number: int, place: int) -> Tokens:
    words = range(100_000 + 700 * number, 100_000 + 700 * number + 150 * (place + 1))
    return system(SYSTEMS[number % len(SYSTEMS)]) + tuple(words)


def fill(bench: Bench, chats: int, turn: Callable[[int, int], Tokens] = turn, blocks_each: int = TURNS) -> None:
    """Put that many chats into the index, one in 50 not absorbed; their blocks are not made."""
    with bench.inventory.index.write() as db:
        for number in range(chats):
            names = [pack_tokens([number, place, *range(6)]) for place in range(blocks_each)]
            for place in range(TURNS):
                now, name = bench.clock(), f"chat {number}"
                new = SavePoint("", name, FINGERPRINT, turn(number, place), 10**6, now, now, 1.0, CHATS_AUDIENCE)
                point = index_points.add_staged(db, new, f"{name} {place}")
                if number % 50 == 49:
                    continue
                there = names[: blocks_each - TURNS + place + 1]
                uses = tuple(BlockUse(b, 16_384, 0, 40 * n, 40, 0, 40 * n) for n, b in enumerate(there))
                recipe = Recipe(10**6, ROW_MAP, uses)
                index_points.store_recipe(db, int(point.id), recipe, dict.fromkeys(there, 16_384))


def prompts(chats: int) -> dict[str, Tokens]:
    """What is looked for: what is there, what begins alike, and what shares next to nothing."""
    asked = {"another beginning": (7,) * 2000, "a beginning and 128K tokens": turn(chats // 2, 2) + (5,) * 131_072}
    for kind, length in enumerate(SYSTEMS):
        known = chats // 2 // 3 * 3 + 3 + kind
        asked[f"{length} tokens shared, a known chat"] = turn(known, TURNS - 1) + (5,) * 100
        asked[f"{length} tokens shared, a turn back"] = turn(known, 0) + (5,) * 100
        asked[f"{length} tokens shared, a new chat"] = system(length) + (5,) * 500
        asked[f"{length} tokens shared, cut short"] = system(length)[:-1] + (5,) * 500
    return asked


def worst(do: Callable[[], object], tries: int = 5) -> tuple[float, float]:
    """The longest it took, in ms, and the most processor time, which others on the machine do not make longer."""
    walls, own = [], []
    for _ in range(tries):
        started, before = time.perf_counter(), time.process_time()
        do()
        walls.append(1000 * (time.perf_counter() - started))
        own.append(1000 * (time.process_time() - before))
    return max(walls), max(own)


def measure(chats: int = CHATS) -> dict[str, tuple[float, float]]:
    """Every lookup and deletion, as `worst` says it."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "store")
        fill(bench, chats)
        for name, prompt in prompts(chats).items():
            for can_cut in (True, False):

                def find(prompt: Tokens = prompt, can_cut: bool = can_cut) -> RestorePlan | Miss:
                    return bench.find(prompt, can_cut=can_cut, conversation="chat 77")

                found = find()
                words = "nothing" if isinstance(found, Miss) else f"{found.tokens_used} tokens"
                figures[f"find: {name}, {'to be cut' if can_cut else 'whole'}: {words}"] = worst(find)
        figures["sums for the panel's line"] = worst(bench.inventory.occupied)
        figures["collect, nothing unused"] = worst(bench.inventory.collect)
        chats_left = iter(range(3, chats, 3))
        figures["delete a chat"] = worst(lambda: bench.inventory.delete_conversation(f"chat {next(chats_left)}"))
        figures["the whole panel"] = worst(bench.inventory.usage)
        figures["plan of a prune"] = worst(lambda: bench.inventory.plan_prune(0))
        bench.store.close()
    return figures


if __name__ == "__main__":
    for name, (wall, own) in measure(int(sys.argv[1]) if len(sys.argv) > 1 else CHATS).items():
        print(f"{wall:9.1f} ms, of the processor {own:7.1f}  {name}")
