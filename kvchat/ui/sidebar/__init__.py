"""The sidebar: chats and their order, search, recently deleted, and the library. Shows and emits signals only.

`controllers/sidebar.py` and `controllers/chat_list.py` act.
"""
