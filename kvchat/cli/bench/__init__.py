"""`kvchat bench`: what save points bring with the user's own model. Developers' benchmarks are in `tests/bench`."""
