"""``python -m goen``: the command line."""

from goen.cli.main import entry

entry()
