"""A process that absorbs without end: `python -m tests.kvstore.absorbing STORE SEED QUOTA`.

Prints a line after each round. Stopped by killing it.
"""

from __future__ import annotations

import os
import random
import sys
from itertools import count
from pathlib import Path

from kvchat.kvstore.whole_file_store import WholeFileStore

from kvchat.kvstore.savepoint import Miss
from tests.kvstore.slot_files import FINGERPRINT, line, slot_file_bytes

CONVERSATIONS = ("thesis", "letter", "recipe")
BODY = 300_000


def absorb_for_ever(folder: Path, seed: int, quota: int) -> None:
    """Save, find, stage, set aside and delete in random order, as several kvchats might."""
    dice = random.Random(seed)
    store = WholeFileStore(folder, quota, 0)
    slots = store.staging_folder()
    for round_number in count():
        conversation = dice.choice(CONVERSATIONS)
        tokens = line(dice.randrange(40, 400))
        saved = slots / f"saved-{round_number}.slot"
        saved.write_bytes(slot_file_bytes(tokens, body=os.urandom(BODY)))
        store.absorb(saved, conversation, FINGERPRINT, tokens)
        found = store.find(dice.choice(CONVERSATIONS), FINGERPRINT, line(400))
        if not isinstance(found, Miss):
            staged = store.stage(found, slots)
            if isinstance(staged, Miss):
                if "damaged" in staged.reason or "missing" in staged.reason:
                    sys.exit(f"found damage: {staged.reason}")
            else:
                store.unstage(staged)
        if dice.random() < 0.1:
            store.delete_conversation(dice.choice(CONVERSATIONS))
        print(round_number, store.usage().total_bytes, flush=True)


if __name__ == "__main__":
    absorb_for_ever(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
