"""One page per study or command."""
