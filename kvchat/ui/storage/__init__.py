"""The storage panel: what is kept of which chat, pruning."""
