"""Finding words in the conversations."""
