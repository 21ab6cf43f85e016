"""What a model file says of itself: its GGUF header, never the weights. What that takes of memory is `memory`."""
