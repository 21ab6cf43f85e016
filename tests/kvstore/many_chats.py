"""Times of lookups and deletions among very many chats: `python -m tests.kvstore.many_chats [CHATS]`.

Prints a line for each: the longest of a few runs in ms, and the least CPU time. The chats share a template of 20
tokens, a system prompt of 300, or one of 1,800; each has a save point for each of its turns, some of them not absorbed.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvchat.kvstore.blocks.layout import CacheRows, Region, RowMap, Run
from kvchat.kvstore.blocks.recipe import BlockUse, Recipe
from kvchat.kvstore.index import points
from kvchat.kvstore.index.token_tree import pack_tokens
from kvchat.kvstore.savepoint import CHATS_AUDIENCE, RestoreMiss, SavePoint, Tokens
from tests.kvstore.store_bench import FINGERPRINT, Bench, token_range

CHATS, TURNS = 10_000, 3
SYSTEM_LENGTHS = (20, 300, 1800)  # tokens that a third of the chats each begin with
ROW_MAP = RowMap((CacheRows((Region(100, 64),), (Run(0, 0, 2000),)),))


def turn_tokens(number: int, turn: int) -> Tokens:
    length = SYSTEM_LENGTHS[number % len(SYSTEM_LENGTHS)]
    return token_range(length, length) + token_range(150 * (turn + 1), 100_000 + 700 * number)


def fill(bench: Bench, chats: int, blocks_each: int) -> None:
    """Put `chats` chats into the index, one in 50 not absorbed; no block files are written."""
    with bench.inventory.index.write() as db:
        for number in range(chats):
            names = [pack_tokens([number, place, *range(6)]) for place in range(blocks_each)]
            for place in range(TURNS):
                name = f"chat {number}"
                new = SavePoint("", name, FINGERPRINT, turn_tokens(number, place), 10**6, 1.0, CHATS_AUDIENCE)
                point = points.add_staged(db, new, f"{name} {place}", bench.clock())
                if number % 50 == 49:
                    continue
                used = names[: blocks_each - TURNS + place + 1]
                uses = tuple(BlockUse(block, 16_384, 0, 40 * n, 40, 0, 40 * n) for n, block in enumerate(used))
                points.store_recipe(db, int(point.id), Recipe(10**6, ROW_MAP, uses), dict.fromkeys(used, 16_384))


def prompts(chats: int) -> dict[str, Tokens]:
    """Return prompts that are known, share a beginning, or share almost nothing."""
    long = turn_tokens(chats // 2, 2) + (5,) * 131_072
    prompts = {"another beginning": (7,) * 2000, "a beginning and 128K tokens": long}
    for kind, length in enumerate(SYSTEM_LENGTHS):
        known, system = chats // 2 // 3 * 3 + 3 + kind, token_range(length, length)
        prompts[f"{length} tokens shared, a known chat"] = turn_tokens(known, TURNS - 1) + (5,) * 100
        prompts[f"{length} tokens shared, a turn back"] = turn_tokens(known, 0) + (5,) * 100
        prompts[f"{length} tokens shared, a new chat"] = system + (5,) * 500
        prompts[f"{length} tokens shared, cut short"] = system[:-1] + (5,) * 500
    return prompts


def worst_ms(function: Callable[[], object], tries: int = 5) -> tuple[float, float]:
    """Return the longest wall time and the least processor time; the machine may be busy."""
    wall, processor = [], []
    for _ in range(tries):
        started, before = time.perf_counter(), time.process_time()
        function()
        wall.append(1000 * (time.perf_counter() - started))
        processor.append(1000 * (time.process_time() - before))
    return max(wall), min(processor)


def measure(chats: int = CHATS, blocks_each: int = TURNS) -> dict[str, tuple[float, float]]:
    """Return the `worst_ms` of every lookup and deletion."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "store")
        fill(bench, chats, blocks_each)
        for name, prompt in prompts(chats).items():
            for can_cut in (True, False):
                find = partial(bench.find, prompt, can_cut=can_cut, conversation="chat 77")
                plan = find()
                result = "nothing" if isinstance(plan, RestoreMiss) else f"{plan.tokens_used} tokens"
                figures[f"find: {name}, {'to be cut' if can_cut else 'whole'}: {result}"] = worst_ms(find)
        figures["sums for the panel's line"] = worst_ms(bench.inventory.occupied_bytes)
        figures["collect, nothing unused"] = worst_ms(bench.inventory.delete_unused_blocks)
        chats_left = iter(range(3, chats, 3))
        figures["delete a chat"] = worst_ms(lambda: bench.inventory.delete_conversation(f"chat {next(chats_left)}"))
        figures["the whole panel"] = worst_ms(bench.inventory.usage)
        figures["plan of a prune"] = worst_ms(lambda: bench.inventory.plan_prune(0))
        bench.store.close()
    return figures


if __name__ == "__main__":
    for name, (wall, processor) in measure(int(sys.argv[1]) if len(sys.argv) > 1 else CHATS).items():
        print(f"{wall:9.1f} ms, of the processor {processor:7.1f}  {name}")
