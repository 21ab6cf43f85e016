"""Slot files: their layout, splitting into blocks, and rebuilding from blocks. Knows no index."""
