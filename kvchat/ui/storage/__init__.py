"""The storage window: the memory of each chat, and what shrinking would delete; and the window of saved time.

Its limits are a page of `settings`.
"""
