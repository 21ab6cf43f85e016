"""The kvchat commands, and process setup and exit. No Qt, no display."""
