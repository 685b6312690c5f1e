import numpy as np
import pytest
import torch

from goen.data.inputs import as_stream
from goen.detectors import KNN, GoenM
from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from goen.gate.fitting.passes import gather, run_passes
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
