"""Finding words in the conversations.

**Finding** (`chat/search/search.py`). Triggers mark messages and titles that are not indexed yet, whoever writes
them; their words follow in steps, in the background. `words/folding.py` spreads text out so that FTS5 finds words
without case or accents, and single characters of scripts without spaces and emoji. What is attached to a message is
found with it; `chat/search/excerpts.py` shows hits in plain words.
"""
