"""The transcript: one conversation's messages below each other, with selection and search across them.

A model's text is untrusted and unbounded. It becomes plain values (`markdown.py`) before any widget sees it:
`markdown_stream.py` parses only what can still change, `part_column.py` lays out only the parts that changed,
`code_view.py` appends and highlights lines in short steps, a thread renders formulas (`formulas.py`). One
document per message was measured: it blocked the window longer for code and tables, which could not scroll sideways
there, and Qt selects in one document only. Only messages near the viewport have widgets (`message_column.py`). Nothing
is loaded, hidden characters are removed from prose and named in code (`text/safe_text.py`), links ask (`text_page.py`).
"""
