"""What is done in spare time, the one ranking of it."""

from __future__ import annotations

from enum import IntEnum

ABSORBING_PATIENCE_S = 10.0  # for so long what was saved lies in memory, if something else goes on and on


class Rank(IntEnum):
    """What nobody waits for, the most urgent first."""

    SETTLE = 0  # an answer's slot is brought to the turn boundary and saved: else the answer is read again
    GROW = 1  # the engine is started again with more room
    TRY_OUT = 2  # memory that came with a chat is tried out: somebody looks at how that goes
    PREPARE = 3  # what the user looks at and writes is restored and read
    DOCUMENTS = 4  # documents that are kept for chats to begin on are read
    TITLE = 5  # a chat is named
    VERIFY = 6  # a chat is read whose memory came from elsewhere
    # Beside the slot, which they do not need:
    ABSORB = 7  # what was saved is taken apart
    WARM_UP = 8  # what may be restored next is read from a slow disk
