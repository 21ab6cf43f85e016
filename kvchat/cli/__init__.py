"""The commands that need no display: ask, bench, doctor."""
