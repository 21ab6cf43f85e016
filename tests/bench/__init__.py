"""Benchmarks for developers. Users have `kvchat bench`."""
