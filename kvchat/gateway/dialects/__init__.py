"""What clients speak: requests understood, their prompts' ids, and their answers listened to. Nothing is rewritten."""
