"""Where a session finds a ready engine: kvchat's own (managed) or the user's server (external), chosen and measured.

`base.py` is common to both, `switching.py` changes from one to the other as the settings say. `setup.py` finds engines
and downloads others for the graphics card, `trial.py` tries them out.
"""
