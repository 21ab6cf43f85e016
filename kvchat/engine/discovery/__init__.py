"""Discovery of engines and graphics cards, and what each engine can do. Keeps no engine running."""
