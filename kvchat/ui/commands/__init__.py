"""Everything that keys and the palette can do: one table, and what is drawn from it."""
