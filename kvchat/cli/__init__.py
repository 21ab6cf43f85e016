"""Commands of the command line, and process setup and exit. No Qt, no display."""
