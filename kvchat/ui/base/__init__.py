"""Colors, theme, style sheet, fonts, icons and plain widgets, independent of chats and the runtime."""
