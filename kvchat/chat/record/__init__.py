"""The conversations on disk: their values, the database and its schema, the tree, and what the model is given of it.

- **The tree** (`chat/turn/turns.py`, `chat/record/tree.py`). Regenerate, edit and an edited reply are siblings:
  nothing is overwritten, and the way back is warm. What a turn begins with is on disk first. Deleting takes what
  followed along, for it was said because of that message.
- **One writer** (`system/owner.py`): the owner of the data folder. A command's question in a chat that is being
  answered is on disk at once, and moves behind that reply when its turn comes (`Database.stand_last`).
"""
