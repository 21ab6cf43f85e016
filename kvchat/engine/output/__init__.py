"""What an engine prints: its log, and what can be read in it."""
