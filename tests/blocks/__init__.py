"""How long the window's thread is ever held up, measured in the real window: `python -m tests.blocks`."""
