"""goen: out-of-distribution detection for image classifiers, at a false-alarm rate you choose."""

from importlib import import_module
from logging import NullHandler, getLogger
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from goen import data, detectors, errors, metrics, models
    from goen.data.pictures import read_picture
    from goen.extraction import extract
    from goen.gate import Gate, Prediction, load
    from goen.libraries.opening import open_model
    from goen.models.tapping.layers import layers
    from goen.models.tapping.preprocess import Preprocess
    from goen.models.tapping.tapped import Tapped
    from goen.monitor import Monitor
    from goen.outputs import Outputs

# Messages are logged; an application decides whether to show them, as the command line does.
getLogger("goen").addHandler(NullHandler())

__version__ = "0.1.0.dev0"

__all__ = [
    "Gate",
    "Monitor",
    "Outputs",
    "Prediction",
    "Preprocess",
    "Tapped",
    "__version__",
    "data",
    "detectors",
    "errors",
    "extract",
    "layers",
    "load",
    "metrics",
    "models",
    "open_model",
    "read_picture",
]

# Imported when first used: `goen data list` and `goen --help` must not wait seconds for torch.
_HOME = {
    "Gate": "gate",
    "Monitor": "monitor",
    "Outputs": "outputs",
    "Prediction": "gate",
    "Preprocess": "models.tapping.preprocess",
    "Tapped": "models.tapping.tapped",
    "extract": "extraction",
    "layers": "models.tapping.layers",
    "load": "gate",
    "open_model": "libraries.opening",
    "read_picture": "data.pictures",
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
