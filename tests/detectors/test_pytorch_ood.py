"""The bridge asks of a detector what pytorch-ood's have, and nothing more.

pytorch-ood itself needs torchvision and is measured against in benchmarks/peers.py.
"""

import sys
import types

import pytest
import torch
from torch import Tensor

from goen.detectors.pytorch_ood import PytorchOod, pytorch_ood
from goen.errors import UsageError
from goen.outputs import Outputs


class Centroid:
    """A detector with pytorch-ood's methods for features."""

    def __init__(self, encoder: None, scale: float = 1.0) -> None:
        assert encoder is None
        self.scale = scale

    def fit_features(self, x: Tensor, y: Tensor) -> "Centroid":
        assert len(x) == len(y)
        self.centre = x.mean(0)
        return self

    def predict_features(self, x: Tensor) -> Tensor:
        return self.scale * (x - self.centre).norm(dim=1)


class Largest:
    """One for logits."""

    def __init__(self, model: None) -> None:
        pass

    def fit_logits(self, logits: Tensor, y: Tensor) -> "Largest":
        return self

    def predict_logits(self, logits: Tensor) -> Tensor:
        return -logits.amax(1)


OUTPUTS = Outputs(
    torch.tensor([[1.0, 2.0], [5.0, 0.0]]), {"z": torch.tensor([[0.0, 0.0], [2.0, 0.0]])}
)
LABELS = torch.tensor([0, 1])


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the same name that holds the two."""
    package, module = types.ModuleType("pytorch_ood"), types.ModuleType("pytorch_ood.detector")
    module.Centroid, module.Largest = Centroid, Largest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pytorch_ood", package)
    monkeypatch.setitem(sys.modules, "pytorch_ood.detector", module)


@pytest.mark.usefixtures("installed")
def test_features_and_logits_find_their_way() -> None:
    centroid = pytorch_ood("Centroid", scale=3.0).fit(OUTPUTS, LABELS)
    far = Outputs(torch.zeros(1, 2), {"z": torch.tensor([[1.0, 4.0]])})
    assert centroid.score(far).tolist() == [12.0]
    largest = pytorch_ood("Largest").fit(OUTPUTS, LABELS)
    assert largest.score(OUTPUTS).tolist() == [-2.0, -5.0]
    assert largest.score(OUTPUTS).dtype == torch.float64


@pytest.mark.usefixtures("installed")
def test_what_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="has no 'Centroyd'"):
        pytorch_ood("Centroyd")
    with pytest.raises(UsageError, match="Largest has no fit_features, so it cannot read z"):
        PytorchOod(Largest(None), feature="z")
    with pytest.raises(UsageError, match="cannot be made of its name alone"):
        pytorch_ood("Largest", k=3)


def test_without_the_package_the_bridge_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_ood.detector", None)
    with pytest.raises(UsageError, match=r"pip install 'goen\[bridge\]'"):
        pytorch_ood("KNN")


def test_outputs_and_scores_have_a_row_for_each_image() -> None:
    detector = PytorchOod(Centroid(None)).fit(OUTPUTS, LABELS)
    with pytest.raises(UsageError, match="logits have 1 rows, feature 'z' has 2"):
        detector.score(Outputs(OUTPUTS.logits[:1], OUTPUTS.features))
    detector.detector.predict_features = lambda x: x
    with pytest.raises(UsageError, match=r"PytorchOod\._score .* \(2,\), got .* \(2, 2\)"):
        detector.score(OUTPUTS)
