"""How a protocol is planned, written to a file, opened and split."""
