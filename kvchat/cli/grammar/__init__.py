"""The command line's grammar: arguments, their values, and what was asked for. Does none of it."""
