"""Engine processes: command line, supervision, log, and explanation of crashes."""
