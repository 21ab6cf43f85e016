"""Colors, theme, style sheet, fonts, icons and plain widgets. Knows no chat and no runtime."""
