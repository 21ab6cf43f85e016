"""Rendering of a message's text: Markdown, formulas, code and its colors. Not its place on the page."""
