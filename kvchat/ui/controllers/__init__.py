"""Controllers between the runtime and the widgets: they show events and turn user actions into calls."""
