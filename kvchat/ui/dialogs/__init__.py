"""Windows beside the main one, of any kind: what they share, questions, reports."""
