"""Other programs that use the engine: their setup, their requests, and why kvchat reprocessed their prompts."""
