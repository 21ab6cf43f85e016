"""Dialogs: questions, reports, and the base class of secondary windows."""
