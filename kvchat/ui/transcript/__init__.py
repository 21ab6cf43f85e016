"""The transcript: the messages of one conversation, with selection and search across them.

A model's text is untrusted and can be very long. `markdown.py` converts it to plain values before any widget shows it.
`markdown_stream.py` parses only text that can still change, `code_view.py` appends and highlights a few lines at a
time, and `formulas.py` renders formulas in a thread. A message is a list of parts, such as prose, code, tables and the
footer (`parts.py`). They are the rows of the transcript, and only those near the viewport have widgets
(`message_column.py`). To add a kind of part, list it in `message_parts` with the function that makes its widget
(`reply_view.py`). The transcript loads no files or images, removes hidden characters from prose and shows their names
in code (`text/safe_text.py`), and asks before it opens a link (`text_page.py`).
"""
