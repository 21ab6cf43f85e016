"""Order and deletion: folders and archive, what can still be had back, and what goes for good."""
