"""Slot files: their layout, splitting into blocks, and rebuilding from blocks. Does not use the index."""
