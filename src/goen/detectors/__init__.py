"""Detectors: ``Outputs`` in, scores out; a high score means OOD.

To add one: a module here with a subclass of ``Detector``, and its name in ``registry.py``.
Then every command can use it. ``docs/methods/adding.md`` shows how.
"""

from goen.detectors.registry import *  # noqa: F403
from goen.detectors.registry import __all__ as __all__
