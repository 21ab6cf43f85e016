"""The engine window: how it is doing, its log, its memory."""
