"""How one conversation is answered: its options, its model, the presets it may begin with."""
