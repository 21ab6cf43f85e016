"""The models window, and the choice of a model."""
