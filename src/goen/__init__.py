"""goen: out-of-distribution detection for image classifiers, at a false-alarm rate you choose."""

from importlib import import_module
from logging import NullHandler, getLogger
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from goen import data, detectors, errors, metrics, models
    from goen.data.images.decoding import read_image
    from goen.data.protocol import Protocol
    from goen.extraction import extract
    from goen.features.extractor import FeatureExtractor
    from goen.features.layers import list_layers
    from goen.features.loading import load_model
    from goen.features.preprocess import Preprocess
    from goen.gate import DeclaredShift, Gate, Prediction, load
    from goen.monitor import Monitor
    from goen.outputs import LinearClassifier, Outputs
    from goen.scoring.scorer import Scorer
    from goen.studies.given_network_bench import bench

# Messages are logged; an application decides whether to show them, as the command line does.
getLogger("goen").addHandler(NullHandler())

__version__ = "0.1.0.dev0"

__all__ = [
    "DeclaredShift",
    "FeatureExtractor",
    "Gate",
    "LinearClassifier",
    "Monitor",
    "Outputs",
    "Prediction",
    "Preprocess",
    "Protocol",
    "Scorer",
    "__version__",
    "bench",
    "data",
    "detectors",
    "errors",
    "extract",
    "list_layers",
    "load",
    "load_model",
    "metrics",
    "models",
    "read_image",
]

# Imported when first used: `goen data list` and `goen --help` must not wait seconds for torch.
_HOME = {
    "DeclaredShift": "gate",
    "Gate": "gate",
    "LinearClassifier": "outputs",
    "Monitor": "monitor",
    "Outputs": "outputs",
    "Prediction": "gate",
    "Protocol": "data.protocol",
    "Scorer": "scoring.scorer",
    "Preprocess": "features.preprocess",
    "FeatureExtractor": "features.extractor",
    "bench": "studies.given_network_bench",
    "extract": "extraction",
    "list_layers": "features.layers",
    "load": "gate",
    "load_model": "features.loading",
    "read_image": "data.images.decoding",
}


if not TYPE_CHECKING:  # a type checker takes the names above; with this it would take any

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'goen' has no attribute {name!r}")
        module = import_module(f"goen.{_HOME.get(name, name)}")
        value = getattr(module, name) if name in _HOME else module
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
