"""Paired devices: their list, the API for other computers, and browsers."""
