"""Command line: the commands, and setup and exit of the process. Imports no Qt."""
