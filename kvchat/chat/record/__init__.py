"""Conversations on disk: values, database, schema, and the message tree.

Regenerated and edited messages are siblings of the originals: nothing is overwritten. Deleting a message deletes its
descendants. Only the process that owns the data folder writes (`system/owner.py`). If a command sends a question to a
chat while a reply is running, the question is stored at once and moved after that reply when its turn comes
(`Database.move_to_end`).
"""
