"""Other programs that use the engine: their setup, their requests, and why prompts were reprocessed."""
