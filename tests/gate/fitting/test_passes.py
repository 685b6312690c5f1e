import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from goen.data.inputs import as_stream
from goen.detectors import KNN, GoenM
from goen.errors import GoenWarning, UsageError
from goen.features.extractor import FeatureExtractor
from goen.gate.fitting.passes import gather, run_passes, try_network
from goen.outputs import Outputs
from tests.own_model import LAYERS, digits, preprocess, trained


def extractor() -> FeatureExtractor:
    return FeatureExtractor(trained(), LAYERS, preprocess=preprocess)


@pytest.mark.parametrize("detector", [GoenM(), KNN()], ids=["in parts", "at once"])
def test_a_pass_over_training_images_fits_what_it_reads(detector: GoenM | KNN) -> None:
    train = digits().train
    found = run_passes(extractor(), detector, {"train": as_stream(train, "train", 100)}).train
    assert found is not None
    assert found.count == len(train)
    assert found.accuracy > 0.9
    assert detector.features == (LAYERS if isinstance(detector, GoenM) else LAYERS[1:])


def test_training_images_need_labels() -> None:
    with pytest.raises(UsageError, match="train needs integer labels"):
        run_passes(extractor(), KNN(), {"train": as_stream(digits().train.read(), "train", 100)})


def test_a_pass_keeps_outputs_labels_and_the_first_images_alone() -> None:
    network, some = extractor(), digits().test.take(range(50))
    found = gather(network, as_stream(some, "test", 20), LAYERS[1:])
    assert len(found) == 50
    assert [*found.outputs.features] == ["late"]
    assert torch.allclose(found.alone.logits, found.outputs.logits[:8], atol=1e-4)
    assert found.outputs.labels is not None
    assert np.array_equal(found.outputs.labels, some.labels)
    right = np.mean(found.outputs.logits.argmax(1).numpy() == some.labels)
    assert found.accuracy == pytest.approx(right)
    unlabelled = gather(network, as_stream(some.read(), "test", 20), LAYERS)
    assert unlabelled.outputs.labels is None
    assert unlabelled.accuracy is None


class AsGiven(nn.Module):
    """A network whose logits are its inputs."""

    def forward(self, rows: Tensor) -> Outputs:
        return Outputs(rows, {"z": rows})


@pytest.mark.parametrize(
    ("rows", "warns"),
    [
        ([[0.05, 0.0], [0.95, 1.0]], True),
        ([[0.125, 0.5], [0.95, 1.0]], False),  # nothing near 0
        ([[0.05, 0.0], [0.5, 0.875]], False),  # nothing near 1
        ([[-0.05, 0.0], [0.95, 1.0]], False),
        ([[0.05, 0.0], [0.95, 1.25]], False),
        ([[0.25, 0.25], [0.5, 0.5]], False),
    ],
)
def test_probabilities_of_a_sigmoid_are_told_from_logits(
    rows: list[list[float]], warns: bool
) -> None:
    inputs = torch.tensor(rows).repeat(2, 1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        outputs = try_network(AsGiven(), AsGiven(), inputs)
    assert torch.equal(outputs.logits, inputs)
    assert [issubclass(one.category, GoenWarning) for one in found] == [True] * warns


def test_probabilities_of_a_softmax_add_up_to_one_in_every_row() -> None:
    whole = torch.tensor([[0.25, 0.75], [0.0, 1.0], [0.3, 0.7]])
    with pytest.raises(UsageError, match="ends in a softmax"):
        try_network(AsGiven(), AsGiven(), whole)
    for other in (whole + torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.01, 0.0]]), whole * 2 - 0.5):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GoenWarning)
            assert len(try_network(AsGiven(), AsGiven(), other)) == 3
