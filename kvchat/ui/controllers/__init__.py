"""Between the runtime and the widgets: events become what is shown, what the user does becomes calls.

No painting and no layout; what is decided is decided below, in `chat` and `runtime`.
"""
