"""Widgets that several parts of the window share: lists, entries, panels, notices, questions. Knows no chat."""
