"""The commands, which need no display, and what a process owes whoever started it. No Qt."""
