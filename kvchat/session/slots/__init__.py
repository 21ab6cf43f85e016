"""The engine's slots: what is known to be in each, and who has it."""
