"""Studies: from images to a file of results."""

from goen.studies.main_job import RunConfig, run
from goen.studies.recipes import PRESETS, SEEDS, Preset, Roles

__all__ = ["PRESETS", "SEEDS", "Preset", "Roles", "RunConfig", "run"]
