"""What kvchat asks of the desktop it runs on, each platform's own way behind one small function."""
