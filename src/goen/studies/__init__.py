"""Studies: from images to a file of results."""

from goen.studies.main_job import PRESETS, Preset, RunConfig, run

__all__ = ["PRESETS", "Preset", "RunConfig", "run"]
