"""Settings: the window, its pages, presets and chat settings."""
