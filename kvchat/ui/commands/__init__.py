"""What can be done by keys and by the palette: one table, and what is drawn from it."""
