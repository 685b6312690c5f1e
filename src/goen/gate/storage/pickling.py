"""Gates in a pickle, for engines that send objects to other processes (Ray, Dask, Spark).

A pickle is a program, so goen never loads one. An engine that insists on pickles gets one that only
calls a function of goen with the two files of a saved gate, which are checked as those of any gate.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from goen.features.extractor import FeatureExtractor
from goen.features.preprocess import Preprocess, Preprocessing
from goen.gate.base import BaseGate
from goen.gate.storage.network import is_packaged, unwrapped
from goen.gate.storage.saving import AnyGate, load_gate, save_gate
from goen.io.artifacts import artifact_files

Pickled = tuple[dict[str, bytes], nn.Module | None, Preprocessing | None]


def gate_contents(gate: BaseGate) -> Pickled:
    """What a pickle holds of the gate: its files as they are saved, and the user's own objects.

    The model of ``Gate.fit``, and its preprocessing if that is a function, are pickled as the
    engine pickles any object of the user's. All else is bytes.
    """
    network = gate.network
    inner = unwrapped(network)
    model = preprocess = None
    if isinstance(inner, FeatureExtractor):
        model = None if is_packaged(inner) else inner.model
        preprocess = None if isinstance(inner.preprocess, Preprocess) else inner.preprocess
    return gate_files(gate), model, preprocess


def gate_files(gate: BaseGate) -> dict[str, bytes]:
    """The content of each file of the saved gate, by name."""
    with TemporaryDirectory(prefix="goen-") as folder:
        save_gate(gate, Path(folder, "gate"))
        return {path.name: path.read_bytes() for path in artifact_files(Path(folder, "gate"))}


def read_contents(
    make: Callable[..., AnyGate],
    files: dict[str, bytes],
    model: nn.Module | None,
    preprocess: Preprocessing | None,
) -> AnyGate:
    """The gate of these files, loaded as ``goen.load`` loads it, on the CPU.

    Raises:
        ArtifactError: the files are damaged, or the model is another one.
    """
    with TemporaryDirectory(prefix="goen-") as folder:
        for path in artifact_files(Path(folder)):
            path.write_bytes(files.get(path.name, b""))
        return load_gate(make, Path(folder), model, preprocess)
