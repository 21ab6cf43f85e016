"""The built-in tools. All are off until a chat selects them.

They run inside kvchat and handle what a model wrote, and what strangers wrote to mislead it. Files are read only in
folders that the user named, pages only at public addresses, Python runs in a sandbox, and each result is bounded.
"""
