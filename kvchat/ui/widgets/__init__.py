"""Widgets that several parts of the window share: lists, entries, cards, bars, layouts. Knows no chat."""
