"""Prefix diagnosis: why a program's prompt was reprocessed, and rules that avoid it. No I/O, no Qt.

The engine can reuse a prompt up to its divergence from an earlier one. `prompts.py` keeps the recent prompts of each
program; `causes.py` explains a divergence by the part of the request where it occurs. Rules in `rules.py`, each off
until enabled, rewrite known causes before the prompt is rendered. Prompts are kept in memory only, never on disk.
"""
