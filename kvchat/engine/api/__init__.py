"""Client for llama-server: requests, responses and errors."""
