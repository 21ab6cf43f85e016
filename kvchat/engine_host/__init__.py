"""Engines for sessions: kvchat's own (managed) or the user's server (external).

`host.py` starts, changes and inspects the engine; `engine_in_use.py` tells what is known of it. `setup.py` lists and
downloads engines, and `trial.py` tests them.
"""
