import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import entropy as scipy_entropy
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from goen.detectors import GoenM
from goen.detectors.goen_m import LogitCue
from goen.errors import FitError, GoenWarning, NotFittedError, UsageError
from goen.outputs import Outputs
from tests.detectors.saving import reloaded

CLASSES = 3


def outputs(count: int, shift: float, seed: int) -> tuple[Outputs, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    centres = torch.eye(6)[:CLASSES] * 4 + 1
    features = {
        "early": centres[labels] + torch.randn(count, 6, generator=g) + shift,
        "late": centres[labels][:, :4] + torch.randn(count, 4, generator=g) * 0.5 - shift,
    }
    logits = torch.randn(count, CLASSES, generator=g) + 4 * torch.eye(CLASSES)[labels]
    return Outputs(logits, features), labels


def fitted(ood: bool = False) -> GoenM:
    detector = GoenM(["early", "late"])
    for part in range(3):
        detector.update(*outputs(50, 0.0, part))
    unlike = {
        "far": detector.cues(outputs(30, 3.0, 8)[0]),
        "near": detector.cues(outputs(40, 1, 9)[0]),
    }
    return detector.calibrate_cues(detector.cues(outputs(60, 0.0, 7)[0]), unlike if ood else None)


def test_cues_are_those_of_scipy_and_sklearn() -> None:
    train = [outputs(50, 0.0, part) for part in range(3)]
    probe, _ = outputs(5, 1.0, 4)
    cues = fitted().cues(probe)
    for column, layer in enumerate(("early", "late")):
        rows = torch.cat([o.features[layer] for o, _ in train]).double().numpy()
        # 150 rows of three classes: a fiftieth of a class is the first neighbour.
        bank = NearestNeighbors(n_neighbors=1).fit(rows / np.linalg.norm(rows, axis=1)[:, None])
        unit = probe.features[layer].double().numpy()
        distance, _ = bank.kneighbors(unit / np.linalg.norm(unit, axis=1)[:, None])
        assert np.allclose(cues[:, column], distance[:, -1], atol=1e-7)
    p = torch.softmax(probe.logits.double(), 1).numpy()
    assert np.allclose(cues[:, 2], scipy_entropy(p, axis=1))


@pytest.mark.parametrize("names", [("energy",), ("entropy", "energy"), ("energy", "entropy"), ()])
def test_the_cues_of_the_logits_are_a_choice(names: tuple[LogitCue, ...]) -> None:
    train, labels = outputs(90, 0.0, 0)
    detector = GoenM(["late"], logit_cues=names).fit(train, labels, held_out=outputs(60, 0, 7)[0])
    probe, _ = outputs(5, 1.0, 4)
    probe.logits[0] *= 1000
    assert detector.cue_names == ("late", *names)
    cues = detector.cues(probe)
    logits = probe.logits.double().numpy()
    p = torch.softmax(probe.logits.double(), 1).numpy()
    expected = {"energy": -logsumexp(logits, axis=1), "entropy": scipy_entropy(p, axis=1)}
    for column, name in enumerate(names, start=1):
        assert np.allclose(cues[:, column], expected[name])
    again = reloaded(detector)
    assert again.cue_names == detector.cue_names
    assert torch.equal(again.score(probe), detector.score(probe))


def test_outputs_that_require_gradients_leave_no_graph() -> None:
    def with_graph(*given: int) -> tuple[Outputs, Tensor]:
        plain, labels = outputs(*given)
        features = {name: rows.requires_grad_() for name, rows in plain.features.items()}
        return Outputs(plain.logits.requires_grad_(), features), labels

    detector = GoenM(logit_cues=("entropy", "energy"))
    detector.fit(*with_graph(90, 0, 0), held_out=with_graph(60, 0, 7)[0])
    cues = detector.cues(with_graph(5, 1, 4)[0])
    assert detector.id_cues_ is not None
    assert not cues.requires_grad
    assert not detector.id_cues_.requires_grad
    assert cues.shape == (5, 4)


def test_cues_of_logits_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match=r"cue of the logits .enrgy..*energy"):
        GoenM(logit_cues=["enrgy"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="once"):
        GoenM(logit_cues=["energy", "energy"])
    with pytest.raises(UsageError, match="'energy'"):
        GoenM(["late", "energy"], logit_cues=["energy"])


def test_a_saved_cue_outside_its_range_is_refused() -> None:
    train, labels = outputs(90, 0.0, 0)
    detector = GoenM(["late"], logit_cues=["entropy", "energy"])
    detector.fit(train, labels, held_out=outputs(60, 0.0, 7)[0])
    state = detector.state()
    for column, value in ((0, 2.5), (1, -0.5), (1, 1.2), (2, 1e31)):
        wrong = state["id_cues"].clone()
        wrong[3, column] = value
        with pytest.raises(ValueError, match=f"id_cues of {detector.cue_names[column]}"):
            reloaded(detector, {"id_cues": wrong})


def test_the_nearest_training_images_are_those_that_the_cues_measure() -> None:
    detector = fitted()
    probe, _ = outputs(5, 1.0, 4)
    assert detector.num_kept == (150, 150)
    assert detector.bank_.neighbour == 1
    found = detector.nearest(probe, 2)
    assert list(found) == ["early", "late"]
    for column, near in enumerate(found.values()):
        assert torch.allclose(near.distances[:, 0], detector.cues(probe)[:, column], atol=1e-7)
        assert torch.equal(near.labels, near.numbers % 50 % CLASSES)


def test_without_ood_the_score_is_the_mean_of_z_scores() -> None:
    detector = fitted()
    id_cues, probe = detector.id_cues_.numpy(), detector.cues(outputs(5, 1.0, 4)[0])
    score = detector.score_cues(probe)
    expected = ((probe.numpy() - id_cues.mean(0)) / id_cues.std(0, ddof=1)).mean(1)
    assert np.allclose(score, expected)
    assert detector.probability(score) is None
    assert not detector.has_probability


def test_a_score_worked_by_hand() -> None:
    detector = GoenM(["early"])
    detector.update(*outputs(30, 0.0, 0))
    # Means 2 and 3, standard deviations 1 and 2.
    detector.calibrate_cues(torch.tensor([[1.0, 1.0], [2.0, 3.0], [3.0, 5.0]], dtype=torch.float64))
    score = detector.score_cues(torch.tensor([[4.0, 4.0]], dtype=torch.float64))
    assert score.item() == 1.25


def test_with_ood_the_probability_is_the_sigmoid_at_one_half() -> None:
    detector = fitted(ood=True)
    cues = detector.cues(outputs(20, 2.0, 5)[0])
    score = detector.score_cues(cues)
    assert np.allclose(detector.probability(score), 1 / (1 + np.exp(-score.numpy())))
    assert detector.has_probability
    assert detector.score_cues(detector.id_cues_).mean() < 0 < score.mean()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=3, max_size=3),
    st.lists(st.floats(0, 50), min_size=3, max_size=3),
    st.booleans(),
)
def test_what_is_farther_in_every_cue_never_scores_lower(
    here: list[float], step: list[float], ood: bool
) -> None:
    detector = FITTED[ood]
    near = torch.tensor([here], dtype=torch.float64)
    far = near + torch.tensor([step], dtype=torch.float64)
    assert detector.score_cues(far) >= detector.score_cues(near) - 1e-12


FITTED = {ood: fitted(ood) for ood in (False, True)}


def test_ood_that_looks_more_id_than_the_id_images_is_refused() -> None:
    detector = fitted()
    probe = detector.cues(outputs(5, 1.0, 4)[0])
    before = detector.score_cues(probe)
    with pytest.raises(FitError, match="No cue is higher for the OOD images"):
        detector.calibrate_cues(detector.id_cues_, {"odd": detector.id_cues_ - 100})
    assert torch.equal(detector.score_cues(probe), before)
    assert not detector.has_probability
    with pytest.raises(FitError, match="NaN or infinity"):
        detector.calibrate_cues(detector.id_cues_ * torch.nan)


def test_new_training_images_forget_the_calibration() -> None:
    detector = fitted(ood=True).update(*outputs(10, 0.0, 3))
    with pytest.raises(NotFittedError, match="not calibrated"):
        detector.score_cues(torch.zeros(1, 3))
    assert not detector.has_probability
    with pytest.raises(UsageError, match="The cues changed: give held_out again"):
        detector.recalibrate(None, {"far": outputs(30, 3.0, 8)[0]})


def test_a_cue_that_never_varies_is_only_centred() -> None:
    detector = fitted()
    flat = torch.tensor([[1.0, 0.1, 0.0]] * 3, dtype=torch.float64)
    flat[1, 0], flat[2, 2] = 3.0, 2.0
    detector.calibrate_cues(flat)  # the mean of three 0.1 is not 0.1
    assert (detector.score_cues(flat).abs() < 2).all()
    assert detector.std_[1] == 1
    flat[:, 1] = torch.tensor([1e6, 1e6, 1e6 + 5e-7], dtype=torch.float64)
    detector.calibrate_cues(flat)
    assert detector.std_[1] == 1  # the rounding of a large value is no spread


def test_invalid_layers_and_too_few_images() -> None:
    for layers in ([], ["late", "entropy"]):
        with pytest.raises(UsageError, match="one layer or more"):
            GoenM(layers)
    with pytest.raises(UsageError, match=r"rows must be an integer, at least 1; got 2\.5"):
        GoenM(rows=2.5)  # type: ignore[arg-type]
    probe, labels = outputs(30, 0.0, 0)
    for features in ({}, {**probe.features, "entropy": probe.features["late"]}):
        with pytest.raises(UsageError, match="one layer or more"):
            GoenM().fit(Outputs(probe.logits, features), labels)
    with pytest.raises(FitError, match="Two ID images or more"):
        fitted().calibrate_cues(torch.zeros(1, 3))


@pytest.mark.parametrize("ood", [False, True])
def test_a_loaded_detector_is_the_same_to_the_last_bit(ood: bool) -> None:
    detector = fitted(ood)
    loaded = reloaded(detector)
    probe, _ = outputs(20, 1.0, 6)
    cues = detector.cues(probe)
    assert torch.equal(loaded.cues(probe), cues)
    score = detector.score_cues(cues)
    assert torch.equal(loaded.score_cues(cues), score)
    probability = detector.probability(score)
    again = loaded.probability(score)
    assert (probability is None and again is None) or torch.equal(probability, again)
    assert str(loaded) == str(detector)
    assert loaded.ood_cues_.keys() == detector.ood_cues_.keys()
    for classes, late in ((CLASSES, 5), (CLASSES + 1, 4)):
        with pytest.raises(ValueError, match="another network"):
            GoenM().load_state(detector.state(), {"early": 6, "late": late}, classes)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bank.unit.0", lambda t: 1.01 * t, "bank.unit.0 should hold rows of length 1"),
        ("bank.labels", lambda t: t + 9, "bank.labels should hold numbers from 0 to 2"),
        ("bank.more", lambda t: t, "unknown names: bank.more"),
        ("more", lambda t: t, "unknown names: more"),
        ("mean", lambda t: t[1:], r"mean should be float64 of shape \(3,\)"),
        ("std", lambda t: 0 * t, "std should hold finite numbers from"),
        ("weights", lambda t: -t, r"weights should hold finite numbers from 0\.0"),
        ("weights", lambda t: 0 * t, "weights should not all be 0"),
        ("weights", lambda t: t + 1e308, "give finite scores"),
        ("bias", lambda t: t + torch.inf, "bias should hold finite"),
        ("ood_cues.far", lambda t: t + 9, "ood_cues.far of early should hold finite"),
        ("id_cues", lambda t: t[:, :2], r"id_cues should be float64 of shape \(images, 3\)"),
    ],
)
def test_a_forged_state_is_refused(
    name: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    detector = FITTED[True]
    tensor = detector.state().get(name, torch.zeros(3))
    with pytest.raises(ValueError, match=message):
        reloaded(detector, {name: change(tensor)})


def test_a_state_without_its_bank_or_cues_is_refused() -> None:
    for name in ("bank.labels", "bank.unit.1", "id_cues", "mean", "weights", "bias"):
        with pytest.raises(ValueError, match=f"it has no tensor {name}"):
            reloaded(FITTED[True], without=name)


@pytest.mark.parametrize("logit_cues", [("entropy",), ("entropy", "energy"), ()])
def test_without_held_out_images_it_says_what_is_lost(logit_cues: tuple[LogitCue, ...]) -> None:
    train, labels = outputs(100, 0.0, 0)
    with pytest.warns(GoenWarning, match=r"^GoenM .*: 20 of the 100 .* Give held_out") as seen:
        GoenM(logit_cues=logit_cues).fit(train, labels)
    lost = f"its {' and '.join(logit_cues)} is lower and varies less there"
    assert (lost in str(seen[0].message)) is bool(logit_cues)
    with warnings.catch_warnings(action="error"):
        GoenM(logit_cues=logit_cues).fit(train, labels, held_out=outputs(20, 0.0, 3)[0])


def test_without_held_out_images_a_fifth_of_the_training_images_standardises() -> None:
    train, labels = outputs(100, 0.0, 0)
    detector = GoenM().fit(train, labels)
    assert len(detector.bank_) == 80
    assert detector.id_cues_.shape == (20, 3)
    kept = {tuple(row) for row in detector.bank_.unit["late"].tolist()}
    unit = train.features["late"].double()
    unit = (unit / unit.norm(dim=1, keepdim=True)).float()
    left_out = torch.tensor([tuple(row) not in kept for row in unit.tolist()])
    assert left_out.sum() == 20
    # Left out of the bank, and exactly those are what the cues are standardised by.
    cues = detector.cues(train[left_out])
    assert {tuple(row) for row in cues.tolist()} == {tuple(r) for r in detector.id_cues_.tolist()}
    apart = GoenM().fit(train[~left_out], labels[~left_out], held_out=train[left_out])
    assert torch.allclose(apart.score(train), detector.score(train))
    assert torch.equal(GoenM().fit(train, labels).score(train), detector.score(train))
    with pytest.raises(FitError, match="Two ID images or more standardise the cues, got 1"):
        GoenM().fit(train[:9], labels[:9])


def test_fit_is_update_and_calibrate() -> None:
    train, labels = outputs(150, 0.0, 0)
    held_out, ood = outputs(60, 0.0, 7)[0], {"far": outputs(30, 3.0, 8)[0]}
    whole = GoenM().fit(train, labels, held_out=held_out, ood=ood)
    parts = GoenM(["early", "late"])
    for start in range(0, 150, 50):
        parts.update(train[start : start + 50], labels[start : start + 50])
    parts.calibrate(held_out, ood)
    probe, _ = outputs(20, 1.0, 6)
    assert torch.equal(whole.score(probe), parts.score(probe))
    assert whole.has_probability
    assert whole.cue_names == ("early", "late", "entropy")
    assert whole.features == ("early", "late")


def test_the_unit_of_a_cue_does_not_matter_for_its_weight() -> None:
    rng = torch.Generator().manual_seed(0)
    held_out = torch.randn(200, 3, generator=rng, dtype=torch.float64)
    unlike = torch.randn(100, 3, generator=rng, dtype=torch.float64)
    unlike += torch.tensor([2.0, 0.5, 0.0], dtype=torch.float64)
    units = torch.tensor([1e-2, 1.0, 50.0], dtype=torch.float64)
    found = []
    for unit in (torch.ones_like(units), units):
        detector = GoenM(("early", "late"))
        detector.calibrate_cues(held_out * unit, {"kind": unlike * unit})
        found.append(detector.weights_)
    assert torch.allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
    assert found[0][0] > found[0][2]
