"""What can be done by keys and by the palette: one table, and what is drawn from it.

One table says what can be done, by which keys, in which words. From it the keys are installed (`app/keyboard.py`), the
palette is filled (`palette.py`, among all titles in memory) and the sheet is drawn. `Look`
holds theme, text size and whether numbers are shown, and follows the settings.
"""
