"""llama-server: finding one, running it, speaking to it. Knows no conversation and no save point."""
