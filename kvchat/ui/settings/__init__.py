"""The settings window: a page for each matter, whose entries change one setting of `kvchat/settings.py` each.

How an entry looks stands in `widgets/entries.py`.
"""
