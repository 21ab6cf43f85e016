"""The list of chats, its order, the search above it, what was deleted lately, and the library. It shows and announces.

`controllers/sidebar.py` and `controllers/organiser.py` act.
"""
