"""What runs in an engine's own process: the embedded engine, and the leash that ends it with kvchat."""
