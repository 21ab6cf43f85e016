"""Finds out why a program's prompt was read again, and mends it. No input or output, no Qt: values in, values out.

A prompt is reused as far as it is equal to one before it. `prompts.py` keeps the last ones of each program (in memory
alone, and bounded), finds the closest and where both part; `causes.py` says why, by the part of the request's body that
stands there. Known breakers are mended before the prompt is rendered, each by a rule of `rules.py`, off until it is
switched on: it changes its place in the body's text and nothing else, byte for byte, and both texts are told. Nothing
of a prompt is ever written to disk here.
"""
