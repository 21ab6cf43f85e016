"""Prefix diagnosis: why a program's prompt was processed again, and rules against it. No I/O, no Qt.

A prompt is reused as far as it equals an earlier one. `prompts.py` keeps the last ones of each program (in memory
only, bounded), finds the closest and where they diverge; `causes.py` explains it by the part of the request's body
at that point. Known causes are rewritten before the prompt is rendered, each by a rule of `rules.py`, off until
switched on: it changes its place in the body's text and nothing else, byte for byte, and reports both texts.
Nothing of a prompt is ever written to disk here.
"""
