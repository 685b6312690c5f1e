import numpy as np
import pytest

from goen.gate import Gate
from goen.gate.diagnostics import is_near_chance
from goen.gate.threshold import HeldOut
from tests.own_model import LAYERS, digits, ood, preprocess, trained


@pytest.fixture(scope="module")
def gate() -> Gate:
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


def test_it_has_what_predict_gives_for_every_held_out_image(gate: Gate) -> None:
    diagnostics, held_out = gate.diagnostics, digits().validation
    assert diagnostics is not None
    predicted = gate.predict(held_out)
    assert np.allclose(diagnostics.scores, predicted.score, atol=1e-5)
    assert np.allclose(diagnostics.cues, np.stack(list(predicted.cues.values()), 1), atol=1e-5)
    assert (diagnostics.predicted == predicted.label).all()
    assert diagnostics.truth is not None
    assert (diagnostics.truth == held_out.labels).all()
    assert diagnostics.accuracy == np.mean(predicted.label == held_out.labels)
    assert len(diagnostics) == len(held_out) == 300


def test_it_knows_which_images_set_the_threshold(gate: Gate) -> None:
    diagnostics = gate.diagnostics
    assert diagnostics is not None
    assert diagnostics.sets_threshold.sum() == 120
    own = np.sort(diagnostics.scores[diagnostics.sets_threshold])
    # The gate's held-out scores are these, increased by a tolerance.
    assert np.ptp(gate.held_out.scores - own - 1e-7 * np.abs(own)) < 1e-12
    assert isinstance(gate.held_out, HeldOut)


def test_the_most_suspicious_have_the_highest_scores(gate: Gate) -> None:
    diagnostics = gate.diagnostics
    assert diagnostics is not None
    rows = diagnostics.most_suspicious(5)
    assert diagnostics.scores[rows].tolist() == sorted(diagnostics.scores)[:-6:-1]


def test_it_is_kept_at_another_rate_and_dropped_by_an_update(gate: Gate) -> None:
    assert gate.with_false_alarm_rate(0.1).diagnostics is gate.diagnostics
    updated = gate.update(ood=ood()).gate
    assert updated.diagnostics is None


def test_labels_that_are_not_given_are_not_known() -> None:
    p = digits()
    unlabelled = Gate.fit(
        trained(), p.train, p.validation.read(), layers=LAYERS, preprocess=preprocess
    )
    assert unlabelled.diagnostics is not None
    assert unlabelled.diagnostics.truth is unlabelled.diagnostics.accuracy is None


def test_chance_is_three_standard_deviations_wide() -> None:
    # Two classes, 100 images: a standard deviation is 0.05.
    assert is_near_chance(0.64, 100, 2)
    assert not is_near_chance(0.66, 100, 2)
    assert is_near_chance(0.1, 100, 2)
    assert not is_near_chance(1.0, 100, 1)
