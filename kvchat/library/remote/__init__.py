"""Downloadable models and engines: Hugging Face, the starter, GitHub, package indexes."""
