"""The transcript: one conversation's messages below each other, with selection and search across them.

A model's text is untrusted and unbounded. It becomes plain values (`markdown.py`) before any widget sees it:
`markdown_stream.py` settles what can no longer change and parses only the rest again, `part_column.py` lays out
only the parts that changed, `code_view.py` appends lines, which a thread highlights within limits. Formulas are
rendered in a thread and drawn over the room their document leaves (`formulas.py`). One document per message was
measured: it blocked the window longer for code and tables, which could not scroll sideways there, and Qt selects in
one document only. Only messages near the viewport have widgets (`message_column.py`); the others have estimated
heights, and the first known visible row keeps its place while they are measured. Widgets are created in any order,
so Tab looks up the next one each time. Nothing is loaded, hidden characters are removed from prose and named in
code, as in readable exports and a document's view (`text/safe_text.py`), links ask (`text_page.py`).

`find.py` marks search hits, also in texts still to come; its bar goes from hit to hit, `attachments/chips.py` shows
those in a document.

What is being written belongs to a chat: draft, attachments (also those still being read: Send waits for them,
`controllers/attachments.py`), an edit in progress. `app/keyboard.py` gives the message being written the keyboard
after a click, and what is typed elsewhere in the window, with input methods too.
"""
