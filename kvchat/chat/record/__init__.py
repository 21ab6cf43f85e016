"""Conversations on disk: values, database, schema, and the message tree.

Regenerated and edited messages are siblings: nothing is overwritten. Deleting a message deletes those after it.
Only the owner of the data folder writes (`system/owner.py`). A command's question in a chat that is being answered
is stored at once and moves behind that reply when its turn comes (`Database.move_to_end`).
"""
