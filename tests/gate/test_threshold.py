"""The tolerance above numerical noise, and the threshold."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import goen
from goen.data.inputs import as_stream
from goen.errors import FitError, GoenWarning, UsageError
from goen.functional import conformal
from goen.gate import Gate, HeldOut
from goen.gate.fitting.passes import gather
from goen.gate.threshold import Answers, is_near_chance, warn_of_ties
from tests.own_model import LAYERS, DigitNet, digits, ood, preprocess, trained


def fit(model: DigitNet | None = None, held_out: object = None) -> Gate:
    p = digits()
    images = p.validation if held_out is None else held_out
    return Gate.fit(model or trained(), p.train, images, layers=LAYERS, preprocess=preprocess)


@pytest.fixture(scope="module")
def gate() -> Gate:
    return fit()


def test_scores_and_labels_stay_together(gate: Gate) -> None:
    order = np.random.default_rng(0).permutation(len(gate.held_out.scores))
    assert gate.held_out.labels is not None
    assert gate.held_out.cues is not None
    again = HeldOut(
        gate.held_out.scores[order], gate.held_out.labels[order], gate.held_out.cues[order]
    )
    shuffled = replace(gate, held_out=again)
    assert np.array_equal(shuffled.held_out.scores, gate.held_out.scores)
    assert np.array_equal(shuffled.held_out.labels, gate.held_out.labels)
    assert np.array_equal(shuffled.held_out.cues, gate.held_out.cues)


def test_properties_are_those_of_the_same_held_out_images(gate: Gate, tmp_path: Path) -> None:
    images = digits().validation.read()
    found = gate.predict(images)
    own = gate.detector.score_cues(torch.tensor(gate.held_out.require_cues())).numpy()
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=trained(), preprocess=preprocess)
    updated = gate.update(ood=ood()).gate
    for one in (gate, loaded, updated):
        properties = one.held_out.properties
        assert properties is not None
        assert properties.shape == (len(gate.held_out), 5)
        own = gate.detector.score_cues(torch.tensor(one.held_out.require_cues())).numpy()
        for row in range(0, len(own), 10):
            same = int(np.abs(found.score - own[row]).argmin())
            assert found.score[same] == pytest.approx(own[row], abs=1e-6)
            expected = [found.properties[name][same] for name in one.property_names]
            assert properties[row] == pytest.approx(expected, abs=1e-6)
    assert found[:2].properties["colour"].shape == (2,)
    assert gate.predict(images[0]).properties["colour"].shape == (1,)


def test_the_tolerance_is_that_of_conformal_prediction(gate: Gate) -> None:
    scores = np.array([4.0, 1.0, 3.0, 2.0])
    held_out = HeldOut(conformal.with_tolerance(scores, 0.25))
    assert held_out.threshold(0.4) == conformal.threshold(
        conformal.with_tolerance(scores, 0.25), 0.4
    )
    assert 3.5 < held_out.threshold(0.4) < 3.501
    with pytest.raises(FitError, match="needs at least 19 held-out scores, got 4"):
        held_out.threshold(0.05)
    cues = torch.tensor(gate.held_out.require_cues())
    labels = torch.arange(len(cues))
    answers = Answers(labels.numpy())
    by_cues = HeldOut.from_cues(gate.detector, cues, answers=answers, rounding=0.25)
    own = gate.detector.score_cues(cues).numpy()
    assert np.array_equal(by_cues.scores, np.sort(conformal.with_tolerance(own, 0.25)))
    assert np.array_equal(by_cues.labels, np.argsort(own, kind="stable"))


def test_images_of_one_class_have_a_threshold_of_their_own() -> None:
    scores = np.arange(40.0)
    held_out = HeldOut(scores, np.arange(40) % 2)
    assert held_out.class_thresholds(0.1, ["even", "odd"]).tolist() == [36, 37]
    with pytest.raises(FitError, match=r"needs 21 held-out .* Too few: even \(20\), odd \(20\)"):
        held_out.class_thresholds(1 / 22, ["even", "odd"])
    with pytest.raises(FitError, match="without the predicted classes"):
        HeldOut(scores).class_thresholds(0.1, ["even", "odd"])


@pytest.mark.parametrize(("count", "end"), [(10, r"9 \(0\)"), (11, r"9 \(0\), \.\.\.")])
def test_ten_classes_with_too_few_images_are_named(count: int, end: str) -> None:
    held_out = HeldOut(np.arange(40.0), np.full(40, count))
    with pytest.raises(FitError, match=rf"Too few: 0 \(0\), 1 \(0\), .*{end}\. Hold out more"):
        held_out.class_thresholds(0.1, [*map(str, range(count + 1))])
    with pytest.raises(UsageError, match="without its held-out cues"):
        held_out.require_cues()


class Wavering(DigitNet):
    """Other outputs for an image alone than in a batch, as in half precision."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": super().forward(x)["logits"] * (1.0005 if len(x) == 1 else 1.0)}


def measured_rounding(gate: Gate) -> float:
    images = as_stream(digits().validation, "held_out", 128)
    return gather(gate.network, images, gate.detector.features).rounding(gate.detector)


def test_scores_are_raised_by_the_rounding_that_was_measured() -> None:
    model = Wavering()
    model.load_state_dict(trained().state_dict())
    gate, steady = fit(model=model.eval()), fit()
    alone, together = (np.array([float(gate.predict(part).score[0]) for part in parts])
        for parts in (digits().validation.read(range(8))[:, None],
                      [digits().validation.read([i, i]) for i in range(8)]))  # fmt: skip
    raised_by = gate.held_out.scores - steady.held_out.scores
    assert np.allclose(raised_by, 2 * np.abs(alone - together).max(), rtol=0.05, atol=3e-6)
    assert raised_by.min() > 5e-5
    assert measured_rounding(gate) == pytest.approx(np.abs(alone - together).max(), rel=0.05)
    assert measured_rounding(steady) < 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_ties_are_ties_alone_and_in_a_batch(seed: int) -> None:
    # One ID image in ten is the same test card, farther out than all others.
    card = np.zeros((3, 32, 32), np.uint8)
    card[:, ::2] = 255
    held_out = digits().validation.read()
    held_out[::10] = card
    torch.manual_seed(seed)
    untrained = DigitNet().eval()
    many, ties = "are copies of others", "held-out images the same"
    with pytest.warns(GoenWarning, match=many), pytest.warns(GoenWarning, match=ties):
        gate = fit(model=untrained, held_out=held_out)
    alone = gate.predict(card)
    together = [gate.predict(np.stack([card] * count)) for count in (2, 7, 64, 128)]
    assert gate.held_out.scores[-5] == pytest.approx(alone.score[0], abs=1e-3)
    for found in (alone, *together):
        assert not found.is_ood.any()
        assert (found.p_value > 0.05).all()


@pytest.mark.parametrize("grouped", [False, True])
def test_ties_that_leave_less_than_half_of_the_rate_are_a_warning(grouped: bool) -> None:
    # The threshold is the 10th highest of 199 scores: nine are above it, if none are equal.
    def held_out(above: int) -> tuple[HeldOut, NDArray[np.float64]]:
        own = np.concatenate([np.zeros(100), np.ones(99 - above), 2 + np.arange(above)])
        return HeldOut(own + 1e-9, groups=np.arange(199) if grouped else None), own

    for above in (4, 9, 12):
        warn_of_ties(*held_out(above), 0.05)
    for above in (0, 3):
        expected = f"{99 - above} of the 199 .* {above} score above it"
        with pytest.warns(GoenWarning, match=expected):
            warn_of_ties(*held_out(above), 0.05)
    few = np.arange(19.0)
    warn_of_ties(HeldOut(few + 1e-9), few, 0.05)  # the highest score is the threshold


def test_a_feature_of_one_number_is_a_warning() -> None:
    rng = np.random.default_rng(0)
    rows = 5 + rng.random((500, 1))
    with pytest.warns(GoenWarning, match="such as a layer of one number"):
        gate = Gate.fit_outputs(rows[:400], None, rows[400:], detector="knn")
    assert not gate.predict_outputs(100 * rows).is_ood.any()


# -- diagnostics of a fit ------------------------------------------------------------------------


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
