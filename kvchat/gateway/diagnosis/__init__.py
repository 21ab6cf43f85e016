"""Prefix diagnosis: why a program's prompt was processed again, and rules against it. No I/O, no Qt.

A prompt is reused as far as it equals an earlier one. `prompts.py` keeps the last ones of each program, in memory
only and bounded; `causes.py` explains where two diverge by the part of the request at that point. Rules in `rules.py`
rewrite known causes before the prompt is rendered, each off until enabled. No prompt is ever written to disk here.
"""
