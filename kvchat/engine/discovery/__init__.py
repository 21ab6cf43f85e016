"""Discovery of engines, their options, and GPUs."""
