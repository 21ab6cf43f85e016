"""The engine window: how it is doing, and its log. Which engine runs is a page of `settings`."""
