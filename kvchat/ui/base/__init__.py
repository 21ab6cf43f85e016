"""What all of the window is drawn with: colours, theme, style sheet, fonts, icons. Knows no chat and no runtime."""
