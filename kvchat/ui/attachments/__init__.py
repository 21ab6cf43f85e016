"""Documents and pictures that go with a message: their chips and tiles, and the views they open in."""
