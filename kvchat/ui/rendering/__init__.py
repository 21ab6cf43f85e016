"""From a message's text to what is laid out: Markdown, formulas, code and its colours. Not its place on the page."""
