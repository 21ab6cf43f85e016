"""kvchat: a desktop tray chat for your own llama-server that remembers."""

__version__ = "0.1.0"
