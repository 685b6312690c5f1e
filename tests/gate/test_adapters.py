import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import nn

from goen.detectors import Energy
from goen.errors import NotFittedError, UsageError
from goen.gate.adapters import GateDetector, GateEstimator
from goen.metrics import ood_metrics
from tests.gate.test_gate import make_gate
from tests.own_model import LAYERS, digits, preprocess, trained


def estimator(**changes: object) -> GateEstimator:
    settings: dict = {"preprocess": preprocess, "false_alarm_rate": 0.1, **changes}
    return GateEstimator(trained(), LAYERS, **settings)


@pytest.fixture(scope="module")
def fitted() -> GateEstimator:
    train = digits().train
    return estimator().fit(train.read(), train.labels)


def test_an_estimator_has_sklearns_signs(fitted: GateEstimator) -> None:
    images = np.concatenate([digits().test.read(), digits().evaluation["noise"].images.read()])
    answer, margin = fitted.predict(images), fitted.decision_function(images)
    assert set(answer) == {-1, 1}
    assert np.array_equal(answer == -1, margin < 0)
    assert np.allclose(margin, fitted.score_samples(images) + fitted.gate_.threshold)
    p = fitted.gate_.predict(images)
    assert np.array_equal(answer == -1, p.is_ood)
    count = len(digits().test)
    assert ood_metrics(-margin[:count], -margin[count:]).auroc > 0.98
    assert len(fitted.gate_.held_out.scores) == 80


def test_it_goes_through_a_pipeline_of_rows(fitted: GateEstimator) -> None:
    train = digits().train
    rows = train.read().reshape(len(train), -1)
    pipeline = make_pipeline(
        FunctionTransformer(lambda x: x / 255), estimator(image_shape=(3, 32, 32))
    )
    pipeline.fit(rows, train.labels)
    some = digits().test.read(range(50))
    same = pipeline.predict(some.reshape(50, -1)) == fitted.predict(some)
    assert same.mean() > 0.95
    assert clone(pipeline).get_params()["gateestimator__false_alarm_rate"] == 0.1


def test_it_takes_any_detector(fitted: GateEstimator) -> None:
    train, some = digits().train, digits().test.read(range(20))
    by_name = estimator(detector="energy").fit(train.read(), train.labels)
    assert isinstance(by_name.gate_.detector, Energy)
    assert clone(by_name).get_params()["detector"] == "energy"
    assert np.allclose(-by_name.score_samples(some), by_name.gate_.predict(some).score)
    assert not np.allclose(by_name.score_samples(some), fitted.score_samples(some))


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(NotFittedError, match="not fitted"):
        estimator().predict(digits().test.read([0]))
    with pytest.raises(UsageError, match="needs labels: fit"):
        estimator().fit(digits().train.read())
    for share in (0, 1, 1.5):
        with pytest.raises(UsageError, match="held_out_share lies between"):
            estimator(held_out_share=share).fit(digits().train.read(), digits().train.labels)


def test_a_detector_has_the_interface_of_pytorch_ood() -> None:
    gate, images = make_gate(), torch.from_numpy(digits().test.read(range(8)))
    detector = GateDetector(gate)
    assert detector.fit(None) is detector
    assert torch.equal(detector(images), detector.predict(images))
    assert np.array_equal(detector.predict(images).numpy(), gate.predict(images).score)


def test_an_estimator_takes_a_wrapped_model(fitted: GateEstimator) -> None:
    settings: dict = {"preprocess": preprocess, "false_alarm_rate": 0.1}
    wrapped = GateEstimator(nn.DataParallel(trained()), LAYERS, **settings)
    wrapped.fit(digits().train.read(), digits().train.labels)
    images = digits().test.read(range(20))
    assert np.array_equal(wrapped.score_samples(images), fitted.score_samples(images))
