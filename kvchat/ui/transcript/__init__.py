"""The page: one conversation's messages below each other, selected and searched across.

A model's text is not trusted and has no bound. It becomes plain values (`markdown.py`) before any widget sees it:
`markdown_stream.py` settles what can no longer change and reads only the rest again, `part_column.py` lays out only
the parts that changed, `code_view.py` appends lines, whose colours are found in a thread and within bounds. Formulas
are set in a thread and drawn over the room their document leaves (`formulas.py`). One document per message was
measured: it held the window up longer for code and tables, which could not scroll sideways there, and Qt selects in
one document only. Only messages near the reader have widgets (`message_column.py`); the others are guessed heights,
and the first known row in sight keeps its place while they are found out. Widgets are made in any order, so Tab asks
each time what stands next. Nothing is loaded, hidden characters are taken out of prose and named in code, as in what is
exported to be read and in a document's view (`words/safe_text.py`), links ask (`text_page.py`).

What is searched for is marked by `find.py`, in texts still to come as well; its bar goes from hit to hit,
`attachments/chips.py` shows those in a document.

What is being written belongs to a chat: draft, attachments (also those still being read: Send waits for them,
`controllers/attachments.py`), an edit that was begun. `app/keyboard.py` gives the message being written the
keyboard after a click, and what is typed elsewhere in the window, with input methods too.
"""
