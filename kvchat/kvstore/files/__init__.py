"""Files and folders of the store, on disk and in memory: private, staged, locked by processes. Knows no tokens."""
