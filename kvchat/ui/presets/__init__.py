"""How a chat is answered: presets and chat settings, in one form."""
