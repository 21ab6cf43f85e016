"""The storage window, with each chat's memory and what pruning would delete, and the time-saved window."""
