"""What is left when the chats' file is damaged: automatic backups, and all that can still be read.

**Damage** (`chat/recovery/automatic_backups.py`, `chat/recovery/salvage.py`, `transfer/repair.py`). A row that
makes no sense costs itself (`chat/record/rows.py`), walks along the tree end in circles, and the index of words is
made anew. At start a file that is small, was not closed well or was met damaged is looked through
(`Database.check`). The way out is one, `kvchat repair`, and offered at start: a new file of every row that can be
read and what the newest automatic backup has; the damaged one is kept. The backups, one a day and three in all, are
written row by row and never from what cannot be read; deletion for good reaches into them.
"""
