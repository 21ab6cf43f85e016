"""What a conversation's context holds and how it is answered, as the window asks for it and changes it."""
