"""Between the runtime and the widgets: events are shown, and the user's actions become calls."""
