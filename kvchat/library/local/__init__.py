"""The models on this computer, whoever put them there."""
