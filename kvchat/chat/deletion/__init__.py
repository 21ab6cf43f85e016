"""Order and deletion: folders and archive, what can still be had back, and what goes for good.

**Recently deleted** (`chat/deletion/recently_deleted.py`). A deleted chat is hidden, a deleted message with all
that followed moves to the table `removed`; both keep their save points and can be had back, by a later run too, for
as long as the settings say (`keep_deleted_days`; with 0 for `UNDO_S` or until quit).

**Forgetting** (`chat/deletion/permanent.py`). After that time, or when the user wants it now, they go for good: the
save points that end in them, their words in the index (SQLite and FTS5 overwrite them), the title made of them. A
save point that another one goes on from stays and becomes that one's (`hand_over` in `kvstore/index/points.py`). What a
killed run left behind goes at the next start.
"""
