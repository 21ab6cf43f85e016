"""Where a turn finds an engine: kvchat's own or the user's server, chosen, measured, rested and asked about."""
