"""The PySide6 user interface: shows state and forwards user actions. No logic."""
