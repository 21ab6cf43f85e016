"""The built-in tools. All are off until a chat selects them.

They run inside kvchat with arguments from a model that untrusted content may have misled. Therefore, files are read
only in folders that the user chose, pages only from public addresses, and Python runs in a sandbox. Results have a
limited size.
"""
