"""Where a session finds an engine: kvchat's own (managed) or the user's server (external), chosen and measured."""
