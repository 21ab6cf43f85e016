"""Running an engine: its command line, its process, its log, watching it, and why it ended. Chooses none."""
