"""Slot files: what lies where in them, how they are taken apart into blocks and put together. Knows no index."""
