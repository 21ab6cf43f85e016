"""The transcript: the messages of one conversation, with selection and search across them.

A model's text is untrusted and can be very long. `markdown.py` converts it to plain values before any widget shows it.
`markdown_stream.py` parses only text that can still change, `part_column.py` lays out only changed parts,
`code_view.py` appends and highlights a few lines at a time, and `formulas.py` renders formulas in a thread. Only
messages near the viewport have widgets (`message_column.py`). A message has several documents, because in a single one,
long code and tables blocked the window longer and could not scroll sideways. The transcript loads no files or images,
removes hidden characters from prose and shows their names in code (`text/safe_text.py`), and asks before it opens a
link (`text_page.py`).
"""
