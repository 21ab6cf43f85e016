"""What runs in an engine's own process: the embedded engine, and the guard that ends any engine with kvchat.

Both are scripts that are run by themselves and import nothing of kvchat."""
