"""Model metadata: the GGUF header, never the weights. Memory needs are in `library/memory`."""
