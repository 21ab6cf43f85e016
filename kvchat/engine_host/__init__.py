"""Engines for sessions: kvchat's own (managed) or the user's server (external).

`host.py` provides the engine, `setup.py` lists and downloads engines, and `trial.py` tests them.
"""
