"""llama-server client: requests, responses, their types and errors. Starts nothing."""
