"""Generated chats: a library of ten messages each, in several languages, always the same; and one long chat.

Every fiftieth chat of the library begins with a document of some 15,000 characters.
"""

import itertools
import random

from kvchat.chat.record.database import Database

MESSAGES = 10  # in each chat
_LATIN = "time year people way day man thing woman life child world school state family café naïve Zürich"
_CHINESE = "我们今天去北京旅游然后回上海吃饭天气很好大家都高兴因为明天是周末"
_EMOJI = "😀👍🎉🚀"
_SYLLABLES = ["ba", "ko", "ri", "tu", "ne", "mo", "sa", "li", "du", "pe", "gra", "sto"]


def fill(database: Database, chats: int) -> None:
    """Write the library, at once. Chat 77 alone says “platypus” and “鸭嘴兽”."""
    chance = random.Random(1)
    words = _LATIN.split() + ["".join(chance.choices(_SYLLABLES, k=chance.randint(2, 4))) for _ in range(20_000)]
    with database.transaction() as db:
        for chat in range(chats):
            id = f"chat{chat}"
            title = " ".join(chance.choices(words, k=5))
            db.execute(
                "INSERT INTO conversations (id, title, created_at, updated_at, leaf_id) VALUES (?, ?, ?, ?, ?)",
                (id, title, chat, chat, f"{id}.{MESSAGES - 1}"),
            )
            for number in range(MESSAGES):
                text = " ".join(chance.choices(words, k=60)) + " the " + "".join(chance.choices(_CHINESE, k=40))
                text += chance.choice(_EMOJI)
                if chat == 77 and number == 5:
                    text += " platypus 鸭嘴兽"
                db.execute(
                    "INSERT INTO messages (id, conversation_id, parent_id, role, content, state, created_at)"
                    " VALUES (?, ?, ?, ?, ?, 'complete', ?)",
                    (
                        f"{id}.{number}",
                        id,
                        f"{id}.{number - 1}" if number else None,
                        ("user", "assistant")[number % 2],
                        text,
                        chat + number / 100,
                    ),
                )
            if chat % 50 == 0:
                pages = [" ".join(chance.choices(words, k=100)) + "".join(chance.choices(_CHINESE, k=99))] * 20
                db.execute(
                    "INSERT INTO attachments (message_id, position, name, size, hash, text) VALUES (?, 0, ?, 9, ?, ?)",
                    (f"{id}.0", f"{title}.pdf", id, "\n".join(pages) + " appendix 附录"),
                )


def fill_chat(database: Database, conversation_id: str, messages: int) -> None:
    ids = [None, *(f"{conversation_id}.{number}" for number in range(messages))]
    rows = [(id, conversation_id, parent, number) for number, (parent, id) in enumerate(itertools.pairwise(ids))]
    with database.transaction() as db:
        db.executemany(
            "INSERT INTO messages (id, conversation_id, parent_id, role, content, state, created_at)"
            " VALUES (?, ?, ?, 'user', 'x', 'complete', ?)",
            rows,
        )
