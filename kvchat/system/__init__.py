"""Access to the operating system: folders, files, keyring, databases and threads."""
