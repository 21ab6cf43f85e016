"""Prepared documents: processed once and saved, so that new chats can start from them.

A prepared set is a system prompt made of documents (`documents.py`). It is processed when the engine is idle, saved
like any system prompt, under the owner `prepared:<id>`, and never pruned. A chat that starts from one has copies of
the documents in its system message, so it does not change when the set does.
"""
