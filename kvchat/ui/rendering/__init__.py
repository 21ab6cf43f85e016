"""Rendering of Markdown, formulas and highlighted code in messages."""
