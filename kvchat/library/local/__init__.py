"""The models on this computer, whoever put them there. Asks nothing of the network."""
