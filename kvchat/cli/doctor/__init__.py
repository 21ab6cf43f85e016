"""`kvchat doctor`: what kvchat found on this machine."""
