"""Running an engine: its command line, its process, watching it, and saying why it ended."""
