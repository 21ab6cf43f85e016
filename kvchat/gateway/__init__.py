"""The door for other programs: what they ask is answered by the same engine, with the same memory."""
