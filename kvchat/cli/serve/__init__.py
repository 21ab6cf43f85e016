"""`kvchat serve`: the door for other programs, without a window."""
