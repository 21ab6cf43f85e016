"""Desktop integration: small functions with an implementation per platform."""
