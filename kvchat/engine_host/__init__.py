"""Where a session finds a ready engine: kvchat's own (managed) or the user's server (external), chosen and measured.

`base.py` is what both do, `switching.py` goes from one to the other as the settings say. Processes: `engine.running`.
`fetching.py` has engines for the graphics card from llama.cpp's releases, `trial.py` tries them out, `setup.py` is what
the window asks of both.
"""
