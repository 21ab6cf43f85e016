"""The conversations on disk: values, database, schema, and the tree of messages.

Regenerated and edited messages are siblings: nothing is overwritten. Deleting a message deletes what followed it. Only
the owner of the data folder writes (`system/owner.py`); a command's question in a chat that is being answered is stored
at once, and moves behind that reply when its turn comes (`Database.stand_last`).
"""
