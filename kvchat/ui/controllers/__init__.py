"""Between the runtime and the widgets: events become what is shown, what the user does becomes calls."""
