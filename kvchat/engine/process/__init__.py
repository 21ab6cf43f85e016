"""Running a given engine: command line, process, log, supervision and crash diagnosis."""
