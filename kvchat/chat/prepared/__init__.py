"""Documents that are read once and kept, so that chats can begin on them without the model reading them again.

A prepared set is a system prompt made of documents (`sources.py`). It is read in spare time and saved as a system
prompt is, under the owner `prepared:<id>`, and never pruned. A chat that begins on one has copies of the documents in
its system message, so it does not change when the set does.
"""
