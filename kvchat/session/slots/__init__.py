"""The engine's slots: what is known to be in each, who has it, and how they share one context."""
