"""The list of chats, its order, the search above it, and what was deleted lately. It shows and announces.

`controllers/sidebar.py` and `controllers/organiser.py` act.
"""
