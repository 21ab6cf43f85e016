"""The page: one conversation's messages below each other, selected and searched across."""
