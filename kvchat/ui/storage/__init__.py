"""The storage window: what is kept of which chat, what shrinking would take; and the page of what it saved.

Its limits are a page of `settings`.
"""
