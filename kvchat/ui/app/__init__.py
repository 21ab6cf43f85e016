"""The main window and what belongs to it alone: place on the screen, keys, tray, quitting, the windows it opens.

It joins the parts of `ui`; what they show and do stands in their own packages.
"""
