"""What clients speak: requests understood, their prompts' ids, and their answers heard.

What an answer says of its cost and of its model is corrected (`replies.py`); nothing else is rewritten.
"""
