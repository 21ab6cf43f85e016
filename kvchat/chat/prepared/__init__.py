"""Documents that were read once and are kept: chats begin on them without the model reading them again.

A prepared set is a system prompt made of documents (`sources.py`: a file, a folder, a repository without what its
.gitignore leaves out, `gitignore.py`). It is read in spare time, in steps (`reading.py`), and saved as a system prompt
is: where first questions begin, which serves every kind of memory; its owner in the store is `prepared:<id>`, never
pruned. A chat that begins on one has the documents attached to its system message, so it stays what it was when the set
goes or is read again; their rows are in the store once. The texts are not: each chat has them, next to gigabytes of
rows.
"""
