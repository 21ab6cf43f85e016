"""Blocks: slot files taken apart into them, and put together out of them. Knows no chat and no index."""
