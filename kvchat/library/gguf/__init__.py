"""What a model file says of itself: its GGUF header, read and never the weights."""
