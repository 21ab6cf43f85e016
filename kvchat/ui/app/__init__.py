"""The main window, the windows beside it, the tray, one instance."""
