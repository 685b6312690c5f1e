"""Detectors: ``Outputs`` in, scores out; a high score means OOD."""

from goen.detectors.density import Density

__all__ = ["Density"]
