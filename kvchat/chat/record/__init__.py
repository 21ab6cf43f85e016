"""Conversations on disk: values, database, schema, and the message tree.

Regenerated and edited messages are siblings: nothing is overwritten. Deleting a message deletes those after it.
Only the owner of the data folder writes (`system/owner.py`). If a command asks in a chat
while a reply is running, its question is stored at once, and moved after that reply when its turn comes
(`Database.move_to_end`).
"""
