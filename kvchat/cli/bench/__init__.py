"""`kvchat bench`: what save points bring on the user's own model and machine, all ratios from one run.

Plots and studies of growth are no part of it: `tests/growth`.
"""
