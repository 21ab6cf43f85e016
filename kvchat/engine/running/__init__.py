"""Running an engine: its command line, its process, its log, watching it, and saying why it ended."""
