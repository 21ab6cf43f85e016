"""The engine window: status and log. The choice of engine is a page of `settings`."""
