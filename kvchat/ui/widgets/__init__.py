"""Widgets shared by several parts of the window: lists, entries, cards, bars, layouts. Knows no chat."""
