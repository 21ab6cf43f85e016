"""For developers: what many short turns cost on disk, measured and drawn. Users have `kvchat bench`."""
