"""The conversations on disk: their values, the database and its schema, the tree, and what the model is given of it.

- **The tree** (`chat/turn/opening.py`, `chat/record/tree.py`). Regenerate, edit and an edited reply are siblings:
  nothing is overwritten, and the way back is warm. What a turn begins with is on disk first. Deleting takes what
  followed along, for it was said because of that message.
- **One writer a chat** (`chat/record/chat_locks.py`). Of several processes one answers in a chat: a lock for each,
  which dies with its process. The question of a second one is on disk at once, moves behind what is said before it
  is its turn (`opening.stand_last`), and its prompt is made then. The window follows what others write
  (`chat/external_changes.py`, SQLite's `data_version`).
"""
