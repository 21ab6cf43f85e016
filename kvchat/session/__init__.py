"""One request to the engine, and the slot it runs in: load, stream, prove, settle, save, for whoever owns it.

Below the chat: no conversation, no message, no database, no Qt. An owner is a text: whose a slot's contents are.
"""
