"""Studies: from images to a file of results, one module per study.

To add one: a module here, its page in ``goen.report.pages`` (with an entry in ``REPORTS`` of
``goen.report.page``) and a command in ``goen.cli`` (with an entry in ``COMMANDS`` of ``cli.main``).
"""

from goen.studies.ablate import VARIANTS, AblateConfig, ablate
from goen.studies.bench import BenchConfig, bench
from goen.studies.geometry import geometry
from goen.studies.methods import METHODS, FitData, Method
from goen.studies.presets import PRESETS, SEEDS, Preset
from goen.studies.robust import RobustConfig, robust
from goen.studies.run import RunConfig, run
from goen.studies.seeds import seeds

__all__ = [
    "METHODS",
    "PRESETS",
    "SEEDS",
    "VARIANTS",
    "AblateConfig",
    "BenchConfig",
    "FitData",
    "Method",
    "Preset",
    "RobustConfig",
    "RunConfig",
    "ablate",
    "bench",
    "geometry",
    "robust",
    "run",
    "seeds",
]
