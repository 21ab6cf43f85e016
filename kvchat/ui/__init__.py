"""PySide6 and nothing else: shows state, forwards what is asked for, decides nothing."""
