"""Text for people: sizes, times and plain words, characters that mislead, what nobody else should see."""
