"""`kvchat doctor`: what kvchat found on this machine. Changes nothing but what `--retest` asks for."""
