"""The main window and what only it uses: position, keyboard, tray, quitting, the windows it opens.

It connects the parts of `ui`, which are in their own packages.
"""
