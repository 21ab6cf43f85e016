"""Text for people: sizes, times and plain words, Markdown, characters that mislead, what nobody else should see.

And how far two texts are the same.
"""
