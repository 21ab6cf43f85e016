"""Speaking to a llama-server: requests, answers, their types and faults. Starts nothing."""
