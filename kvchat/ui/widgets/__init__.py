"""Widgets that several windows use: lists, entries, cards, bars, layouts. They are independent of chats."""
