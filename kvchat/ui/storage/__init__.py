"""The storage window: what is kept of which chat, what shrinking would take. Its limits are a page of `settings`."""
