"""Keeping conversations outside the application: export, import, backup."""
