"""The API dialects: requests, their prompts' ids, and their answers. Only usage and model names are rewritten."""
