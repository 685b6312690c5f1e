"""By rate, per class, and by the share of false flags in a batch."""

from dataclasses import replace

import numpy as np
import pytest

from goen.errors import FitError
from goen.functional import conformal
from goen.gate import Gate

from ..own_model import LAYERS, digits, preprocess, trained
from ..test_scoring import make_gate


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate.fit(
        trained(), digits().train, digits().validation, layers=LAYERS, preprocess=preprocess
    )


def test_per_class_p_values_are_counted_within_the_class(gate: Gate) -> None:
    mondrian = gate.with_false_alarm_rate(0.25).with_per_class()
    p = mondrian.predict(digits().test.read(range(40)))
    for score, label, p_value in zip(p.score, p.label, p.p_value, strict=True):
        own = gate.held_out_scores[gate.held_out_labels == label]
        assert p_value == (1 + (own >= score).sum()) / (len(own) + 1)
    assert (p.is_ood == (p.p_value <= 0.25)).all()
    assert (p.is_ood == (p.score > mondrian.class_thresholds[p.label])).all()
    plain = mondrian.with_per_class(False).predict(digits().test.read(range(40)))
    assert (plain.p_value == conformal.p_values(p.score, gate.held_out_scores)).all()
    assert "per class" in repr(mondrian)


def test_a_class_with_too_few_held_out_images_is_named(gate: Gate) -> None:
    with pytest.raises(FitError, match=r"needs 99 held-out images of each .* Too few: 0 \("):
        gate.with_false_alarm_rate(0.01).with_per_class()
    with pytest.raises(FitError, match="does not know which classes"):
        make_gate().with_per_class()


def test_scores_and_labels_stay_together(gate: Gate) -> None:
    order = np.random.default_rng(0).permutation(len(gate.held_out_scores))
    assert gate.held_out_labels is not None
    assert gate.held_out_cues is not None
    shuffled = replace(
        gate,
        held_out_scores=gate.held_out_scores[order],
        held_out_labels=gate.held_out_labels[order],
        held_out_cues=gate.held_out_cues[order],
    )
    assert np.array_equal(shuffled.held_out_scores, gate.held_out_scores)
    assert np.array_equal(shuffled.held_out_labels, gate.held_out_labels)
    assert np.array_equal(shuffled.held_out_cues, gate.held_out_cues)


def test_discoveries_are_benjamini_and_hochbergs(gate: Gate) -> None:
    known, strange = digits().test.read(range(60)), digits().evaluation["noise"].images
    p = gate.predict(np.concatenate([known, strange.read(range(60))]))
    found = p.discoveries(0.1)
    # By hand: the largest j with the j-th smallest p-value at most j / m of the rate.
    ordered = np.sort(p.p_value)
    passing = [j for j in range(1, 121) if ordered[j - 1] <= 0.1 * j / 120]
    assert found.sum() == (p.p_value <= ordered[passing[-1] - 1]).sum()
    assert found[60:].mean() > 0.9
    assert found[:60].sum() <= 0.25 * found.sum()
    assert not gate.predict(known).discoveries(0.01).any()
