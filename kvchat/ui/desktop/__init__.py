"""The desktop kvchat runs on: each platform's own way behind one small function."""
