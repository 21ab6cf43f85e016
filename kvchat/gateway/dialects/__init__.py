"""API dialects: requests, their prompts' ids, and responses. Only usage and model names are rewritten."""
