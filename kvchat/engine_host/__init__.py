"""Where a session finds a ready engine: kvchat's own (managed) or the user's server (external), chosen and measured.

`switching.py` is the host, of either kind as the settings say. `setup.py` finds engines and downloads others for the
graphics card, `trial.py` tries them out.
"""
