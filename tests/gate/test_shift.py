"""A declared shift: weighted p-values, decisions, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import goen
from goen.errors import FitError, UsageError
from goen.functional.conformal import p_values
from goen.gate import DeclaredShift, Gate
from tests.own_model import LAYERS, digits, preprocess, trained


@pytest.fixture(scope="module")
def gate() -> Gate:
    p = digits()
    made = Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)
    return made.with_false_alarm_rate(0.2)


def test_the_public_name() -> None:
    assert goen.DeclaredShift is DeclaredShift


def test_a_sample_like_the_held_out_images_changes_little(gate: Gate) -> None:
    sample = gate.predict(digits().test.read(range(150)))
    shift = DeclaredShift.from_sample(gate, sample)
    assert shift.properties == ("brightness",)
    assert DeclaredShift.from_sample(gate, sample, on="brightness").properties == ("brightness",)
    assert 60 < shift.effective_size <= 120
    new = gate.predict(digits().test.read(range(150, 300)))
    found = shift.apply(new)
    assert found.weighted
    assert not new.weighted
    assert np.abs(found.p_value - new.p_value).mean() < 0.1
    assert (found.is_ood == (found.p_value <= 0.2)).all()
    assert (found.score == new.score).all()
    with pytest.raises(UsageError, match="weighted for a declared shift"):
        found.flag_with_fdr(0.1)


def test_properties_may_be_named_as_in_an_alarm(gate: Gate) -> None:
    sample = gate.predict(digits().test.read(range(150)))
    shift = DeclaredShift.from_sample(gate, sample, on=["image brightness"])
    assert shift.properties == ("brightness",)
    assert np.array_equal(
        DeclaredShift.from_sample(gate, sample, on="brightness").weights, shift.weights
    )
    size = f"{len(shift.scores)} held-out images count as {shift.effective_size:.0f}"
    assert repr(shift) == f"DeclaredShift(brightness: {size}, false_alarm_rate=0.2)"
    with pytest.raises(UsageError, match="Name what has shifted, one of brightness"):
        DeclaredShift.from_sample(gate, sample, on=[])


def test_where_the_property_moves_the_score_the_rate_holds_only_with_weights() -> None:
    rng, rate, flagged = np.random.default_rng(0), 0.1, []
    for _ in range(60):
        x, y = rng.normal(size=500), rng.normal(0.8, 1, 400)
        held_out = x + rng.normal(size=500)
        shift = DeclaredShift.from_table(held_out, x, y[:200], rate)
        scores = y + rng.normal(size=400)
        found = shift.p_values(scores[200:], y[200:]) <= rate
        flagged.append([found.mean(), np.mean(p_values(scores[200:], held_out) <= rate)])
    weighted, plain = np.mean(flagged, axis=0)
    assert 0.06 < weighted < 0.13
    assert plain > 0.2


def test_a_mix_of_classes_by_hand() -> None:
    scores = np.repeat([1.0, 2.0, 3.0, 4.0], 50)
    labels = np.repeat([0, 0, 0, 1], 50)
    shift = DeclaredShift.from_classes(scores, labels, {0: 0.5, 1: 0.5}, 0.1)
    assert shift.largest == pytest.approx(2)
    assert shift.weights[[0, -1]] == pytest.approx([2 / 3, 2])
    # Weights: 150 of 2/3 and 50 of 2, and the largest, 2, for the new image.
    assert shift.p_values([3.5, 5.0]) == pytest.approx([102 / 202, 2 / 202])
    assert shift.effective_size == pytest.approx(200**2 / (150 * 4 / 9 + 50 * 4))


def test_an_image_that_is_not_finite_is_flagged_whatever_its_weight(gate: Gate) -> None:
    labels = gate.held_out.labels
    assert labels is not None
    shares = np.bincount(labels, minlength=7) / len(labels)
    shift = DeclaredShift.from_classes(gate.held_out.scores, labels, shares.tolist(), 0.2)
    new = gate.predict(digits().test.read(range(3)))
    found = shift.apply(replace(new, score=np.array([-100.0, np.inf, 100.0])))
    assert found.is_ood.tolist() == [False, True, True]
    # Then p is at least 20 / (n / 2 + 20).
    heavy = replace(shift, largest=20.0, weights=shift.weights / 2)
    found = heavy.apply(replace(new, score=np.array([100.0, np.inf, np.nan])))
    assert found.p_value.min() > 0.2
    assert found.is_ood.tolist() == [False, True, True]


def test_what_cannot_be_promised_is_refused(gate: Gate) -> None:
    rng = np.random.default_rng(1)
    scores, x = rng.normal(size=200), rng.normal(size=200)
    with pytest.raises(FitError, match=r"200 held-out images count as \d+, and .* needs 95"):
        DeclaredShift.from_table(scores, x, rng.normal(4, 0.3, 200))
    with pytest.raises(UsageError, match="at least 50 images, got 49"):
        DeclaredShift.from_table(scores, x, x[:49])
    with pytest.raises(UsageError, match="got \\(200,\\), \\(199, 1\\)"):
        DeclaredShift.from_table(scores, x[1:], x)
    with pytest.raises(UsageError, match="finite numbers"):
        DeclaredShift.from_table(scores, np.where(x > 0, np.nan, x), x)
    with pytest.raises(UsageError, match="finite numbers"):
        DeclaredShift.from_table(scores, np.zeros((200, 0)), np.zeros((60, 0)))
    for few in ([], [1.0]):  # no ratio can be fitted
        with pytest.raises((UsageError, FitError), match=r"\(n,\) of one image|1 held-out images"):
            DeclaredShift.from_table(few, np.zeros(len(few)), x)
    unknown = np.where(scores > 2, np.nan, scores)
    with pytest.raises(UsageError, match=r"none of them NaN; got shape .200,. with [1-9]"):
        DeclaredShift.from_table(unknown, x, x)
    with pytest.raises(UsageError, match="none of them NaN"):
        DeclaredShift.from_classes(unknown, np.arange(200) % 2, [0.5, 0.5])
    with pytest.raises(UsageError, match="of one image or more"):
        DeclaredShift.from_classes([], [], [1.0])
    with pytest.raises(UsageError, match="Expected properties \\(1, 1\\)"):
        DeclaredShift.from_table(scores, x, x).p_values([1.0])
    labels = np.arange(200) % 2
    with pytest.raises(UsageError, match=r"sum to 1, got 0\.9"):
        DeclaredShift.from_classes(scores, labels, [0.5, 0.4])
    with pytest.raises(UsageError, match="Class 2 has a share and no held-out image"):
        DeclaredShift.from_classes(scores, labels, [0.5, 0.4, 0.1])
    new = gate.predict(digits().test.read(range(60)))
    with pytest.raises(UsageError, match="Unknown property 'brightnes'"):
        DeclaredShift.from_sample(gate, new, on=["brightnes"])
    with pytest.raises(UsageError, match="Name what has shifted, one of brightness, "):
        DeclaredShift.from_sample(gate, new, on=[])
    with pytest.raises(UsageError, match="no properties"):
        DeclaredShift.from_sample(gate, replace(new, properties={}))
    with pytest.raises(UsageError, match="without groups"):
        DeclaredShift.from_sample(gate.with_false_alarm_rate(0.3).with_per_class(), new)
    bare = replace(gate, held_out=replace(gate.held_out, properties=None))
    with pytest.raises(UsageError, match="has not kept the properties"):
        DeclaredShift.from_sample(bare, new)
    with pytest.raises(UsageError, match="made from a table"):
        DeclaredShift.from_table(scores, x, x).apply(new)
    shift = DeclaredShift.from_sample(gate, gate.predict(digits().test.read(range(150))))
    with pytest.raises(UsageError, match="no properties"):
        shift.apply(replace(new, properties={}))
