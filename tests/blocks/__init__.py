"""Blocking times of the window's thread, measured in the real window: `python -m tests.blocks`."""
