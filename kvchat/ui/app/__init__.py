"""The main window, the windows it opens, and the tray."""
