"""Other programs that use the engine: how they are set up, what they asked, and why it was read again."""
