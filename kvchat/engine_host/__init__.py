"""Ready engines for sessions: kvchat's own (managed) or the user's server (external).

`host.py` is the host, of the kind in the settings. `setup.py` finds engines and downloads others for the
graphics card, `trial.py` tests them.
"""
