"""This computer: its folders, files and keyring, SQLite schemas, and blocking work that can be given up.

Knows no chat, model or engine.
"""
