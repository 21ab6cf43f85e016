"""The SQLite index of save points, their tokens and their recipes."""
