"""`kvchat ask`: one question, or a conversation on the terminal. Runs the very turn that the window runs."""
