"""What lies where in a slot file: header and rows, and how files are cut and put together. No blocks, no index."""
