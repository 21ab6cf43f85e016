"""Conversations, messages and the turn: restore, stream, settle at the turn boundary, save; receipts."""
