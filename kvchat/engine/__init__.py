"""The llama-server process and its wire: find it, plan its arguments, run it, supervise it, speak to it."""
