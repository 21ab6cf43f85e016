"""Models on disk: GGUF facts, memory estimate, context size, the starter model."""
