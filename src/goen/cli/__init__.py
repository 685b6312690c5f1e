"""The command line: one file per command, each of which parses and makes one library call."""
