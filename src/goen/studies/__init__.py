"""Studies: from images to a file of results."""

from goen.studies.run import PRESETS, Preset, RunConfig, run

__all__ = ["PRESETS", "Preset", "RunConfig", "run"]
