"""goen: a gate for image classifiers that knows when it does not know."""

from goen import data, errors

__version__ = "0.1.0.dev0"

__all__ = ["__version__", "data", "errors"]
