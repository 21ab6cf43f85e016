"""Where a session finds a ready engine: kvchat's own (managed) or the user's server (external), chosen and measured.

`base.py` is common to both, `switching.py` changes from one to the other as the settings say. `fetching.py` downloads
engines for the graphics card, `trial.py` tries them out, `setup.py` is what the settings window asks of both.
"""
