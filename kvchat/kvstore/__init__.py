"""Save points on disk. Knows tokens and files; knows no HTTP and no chat."""
