"""Commands for shortcuts and the palette: one table, and the views of it."""
