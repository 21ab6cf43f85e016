"""Controllers between the runtime and the widgets: show events, turn user actions into calls."""
