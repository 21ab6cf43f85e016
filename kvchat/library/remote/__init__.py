"""Models that can be had: Hugging Face, the starter, downloads."""
