"""The settings window: a page per topic, whose entries each change one setting of `kvchat/settings.py`.

The look of an entry is in `widgets/entries.py`.
"""
