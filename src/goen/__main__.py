"""``python -m goen``: the command line."""

from goen.cli.main import entry

if __name__ == "__main__":
    entry()
