"""Conversations, messages and turns (restore, stream, settle at the turn boundary, save), receipts."""
