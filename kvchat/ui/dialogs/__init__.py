"""Windows beside the main one, of any kind: their base class, questions, reports."""
