"""The main window, and what only it uses."""
