"""Running an engine: its command line, process, log, supervision, and why it ended. Chooses none."""
