"""Discovery of engines, their features and graphics cards. Leaves no engine running."""
