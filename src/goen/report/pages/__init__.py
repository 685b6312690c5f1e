"""One page per study or command: results in, a list of sections out; texts in ``templates/``."""
