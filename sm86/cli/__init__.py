"""The command line's words: each module prints for one area; only here a fault becomes an exit code."""
