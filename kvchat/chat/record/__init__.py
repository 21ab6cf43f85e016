"""The conversations on disk: their values, the database and its schema, the tree, and what the model is given of it."""
