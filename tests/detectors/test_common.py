"""Every method of the benchmark goes through the same checks.

Features are blobs; the classifiers on them are trained here with their own losses, so the
predictive methods are checked as the rest: by what they say of strange features.
"""

import copy
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from goen.detectors import Detector
from goen.detectors.calibration_head import HeadConfig
from goen.errors import NotFittedError, UsageError
from goen.models.classifiers import CLASSIFIERS, Classifier, MixtureOfExperts
from goen.models.ensemble import ensemble
from goen.outputs import Outputs
from goen.studies import METHODS, Material, Method
from goen.studies.methods import Judged, Labelled

CLASSES, DIM = 4, 16
KINDS = {"standard": "linear", "goen": "linear"}

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


@cache
def axes() -> Tensor:
    """Sixteen directions at right angles, none along a feature: a class is not one feature."""
    generator = torch.Generator().manual_seed(3)
    return torch.linalg.qr(torch.randn(DIM, DIM, generator=generator)).Q


def centres() -> Tensor:
    """Of four classes, at right angles."""
    return 8 * axes()[:CLASSES]


def known(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    spread = torch.linspace(0.2, 1.0, DIM)
    around = spread * torch.randn(count, DIM, generator=generator) @ axes()
    return centres()[labels] + around, labels


def strange(count: int, seed: int) -> Tensor:
    """Between two classes, nearer to nothing, and off to a side where no class ever goes."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.arange(count) % CLASSES
    between = 0.3 * (centres()[first] + centres()[(first + 1) % CLASSES])
    aside = 4 * axes()[CLASSES]
    return between + aside + 0.3 * torch.randn(count, DIM, generator=generator)


@cache
def classifier(kind: str, seed: int) -> Classifier:
    """A classifier trained on the blobs with its own loss."""
    features, labels = known(400, seed=1)
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(seed)
        head = CLASSIFIERS[kind](DIM, CLASSES)  # type: ignore[index]
        wanted = [p for p in head.parameters() if p.requires_grad]
        optimiser = torch.optim.Adam(wanted, 0.02)
        for step in range(150):
            optimiser.zero_grad()
            loss, _ = head.loss(features, labels, progress=step / 150)
            loss.backward()
            optimiser.step()
    if isinstance(head, MixtureOfExperts):
        # Any one expert can tell the blobs apart, so training gives the gate no reason to know
        # them. This one does: an expert for each class, and one for nothing.
        with torch.no_grad():
            head.gate.weight[:CLASSES] = centres() / 16
            head.gate.weight[CLASSES:] = 0
            head.gate.bias.zero_()
    return head.eval()


def said(method: Method, features: Tensor) -> Outputs:
    """What the method's network says of these features."""
    with torch.no_grad():
        if method.network == "ensemble":
            members = [classifier("linear", seed).predict(features) for seed in range(5)]
            return ensemble([Outputs(member.logits, {}) for member in members])
        kind = KINDS.get(method.network, method.network)
        logits, uncertainty = classifier(kind, 0).predict(features)
    scales = {"layer2": features[:, ::2], "layer4": features, "z": features}
    return Outputs(logits, scales, uncertainty)


def material(method: Method, seed: int = 1) -> Material:
    features, labels = known(400, seed)
    held, held_labels = known(120, seed + 100)
    aside = strange(120, seed + 200)
    sets = {
        "train": Labelled(said(method, features), labels),
        "calibration": Labelled(said(method, held), held_labels),
        "ood:strange": Labelled(said(method, aside), torch.zeros(120, dtype=torch.int64)),
    }
    declared = {r: s for r, s in sets.items() if r.partition(":")[0] in method.fits_on}
    network = SimpleNamespace(classifier=classifier("linear", 0))
    return Material(network, HeadConfig(batch_size=16), declared)  # type: ignore[arg-type]


@cache
def fitted(key: str):  # type: ignore[no-untyped-def]
    return METHODS[key].fit(material(METHODS[key]))


def far_and_near(method: Method) -> tuple[Outputs, Outputs]:
    return said(method, strange(200, 7)), said(method, known(200, 8)[0])


@every_method
def test_strange_features_score_higher(method: Method) -> None:
    far, near = far_and_near(method)
    scores = torch.cat([fitted(method.key).score(near), fitted(method.key).score(far)])
    is_ood = np.arange(400) >= 200
    assert roc_auc_score(is_ood, scores.numpy()) > 0.95


@every_method
def test_one_finite_float64_per_image(method: Method) -> None:
    for outputs in far_and_near(method):
        scores = fitted(method.key).score(outputs)
        assert scores.shape == (200,)
        assert scores.dtype == torch.float64
        assert torch.isfinite(scores).all()
        assert len(scores.unique()) > 190  # nothing saturates


@every_method
def test_an_image_is_scored_alone(method: Method) -> None:
    outputs = said(method, torch.cat([strange(40, 9), known(41, 10)[0]]))
    whole = fitted(method.key).score(outputs)
    one_by_one = torch.cat([fitted(method.key).score(outputs[i : i + 1]) for i in range(81)])
    assert torch.allclose(one_by_one, whole, rtol=1e-6, atol=1e-8)
    order = torch.randperm(81, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(fitted(method.key).score(outputs[order]), whole[order], rtol=1e-6)


@every_method
def test_no_images_no_scores(method: Method) -> None:
    outputs = said(method, known(4, 10)[0])
    assert fitted(method.key).score(outputs[:0]).shape == (0,)


@every_method
def test_what_comes_in_stays_as_it_is(method: Method) -> None:
    given = material(method)
    before = copy.deepcopy(dict(given.sets))
    outputs, _ = far_and_near(method)
    kept = copy.deepcopy(outputs)
    method.fit(given).score(outputs)
    for role, labelled in given.sets.items():
        assert _same(labelled.outputs, before[role].outputs)
        assert torch.equal(labelled.labels, before[role].labels)
    assert _same(outputs, kept)


def _same(a: Outputs, b: Outputs) -> bool:
    features = all(torch.equal(a.features[k], b.features[k]) for k in a.features)
    return torch.equal(a.logits, b.logits) and features


@every_method
def test_fitting_twice_gives_the_same(method: Method) -> None:
    outputs, _ = far_and_near(method)
    again = method.fit(material(method)).score(outputs)
    assert torch.equal(again, fitted(method.key).score(outputs))


@every_method
def test_only_declared_images_can_be_fitted_on(method: Method) -> None:
    nothing = Material(
        SimpleNamespace(classifier=classifier("linear", 0)),  # type: ignore[arg-type]
        HeadConfig(),
        {},
    )
    if method.fits_on:
        with pytest.raises(UsageError, match="declared that it fits on"):
            method.fit(nothing)
    else:
        method.fit(nothing)


def detectors() -> list[str]:
    return [key for key in METHODS if not key.startswith("goen")]


@pytest.mark.parametrize("key", detectors())
def test_a_second_fit_forgets_the_first(key: str) -> None:
    method = METHODS[key]
    detector: Detector = copy.copy(fitted(key))
    outputs, _ = far_and_near(method)
    features, labels = known(300, 77)
    other = Labelled(said(method, features * 1.5 + 0.1), labels)
    assert detector.fit(*other) is detector
    moved = detector.score(outputs)
    role = method.fits_on[0] if method.fits_on else None
    if role is None:
        assert torch.equal(moved, fitted(key).score(outputs))
        return
    assert not torch.equal(moved, fitted(key).score(outputs))
    detector.fit(*material(method)[role])
    assert torch.equal(detector.score(outputs), fitted(key).score(outputs))


@pytest.mark.parametrize("key", detectors())
def test_a_saved_state_scores_the_same(key: str) -> None:
    outputs, _ = far_and_near(METHODS[key])
    blank: Detector = copy.copy(fitted(key))
    blank.fitted_ = None
    if blank.needs_fit:
        for what in (lambda: blank.score(outputs), blank.state):
            with pytest.raises(NotFittedError, match="is not fitted"):
                what()
    state = fitted(key).state()
    assert all(isinstance(value, Tensor) for value in state.values())
    assert torch.equal(blank.load_state(state).score(outputs), fitted(key).score(outputs))


@pytest.mark.parametrize("key", [key for key in METHODS if key.startswith("goen")])
def test_a_saved_scorer_scores_the_same(key: str) -> None:
    outputs, _ = far_and_near(METHODS[key])
    scorer = fitted(key).scorer
    loaded = type(scorer).from_state(scorer.config(), scorer.state())
    assert torch.equal(Judged(loaded).score(outputs), fitted(key).score(outputs))
    assert scorer.gives_probability == METHODS[key].uses_ood


@pytest.mark.parametrize("key", detectors())
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_are_scored_too(key: str, dtype: torch.dtype) -> None:
    method = METHODS[key]
    far, _ = far_and_near(method)
    cast: Callable[[Tensor], Tensor] = lambda t: t.to(dtype)  # noqa: E731
    features = {name: cast(f) for name, f in far.features.items()}
    scores = fitted(key).score(Outputs(cast(far.logits), features, far.uncertainty))
    reference = fitted(key).score(far)
    scale = reference.std().clamp_min(1e-6)
    assert ((scores - reference).abs() / scale).max() < 0.25


@pytest.mark.parametrize("key", detectors())
def test_features_that_are_not_finite_are_refused(key: str) -> None:
    method = METHODS[key]
    far, _ = far_and_near(method)
    broken = Outputs(far.logits.clone(), {k: v.clone() for k, v in far.features.items()})
    broken.logits[3] = torch.nan
    for values in broken.features.values():
        values[3] = torch.nan
    doubt = None if far.uncertainty is None else far.uncertainty.clone()
    if doubt is not None:
        doubt[3] = torch.nan
    with pytest.raises(UsageError):
        fitted(key).score(Outputs(broken.logits, broken.features, doubt))


@pytest.mark.parametrize("key", [k for k in detectors() if hasattr(fitted(k), "feature")])
def test_a_feature_that_is_not_there_is_said(key: str) -> None:
    far, _ = far_and_near(METHODS[key])
    with pytest.raises(UsageError, match="Unknown feature 'z'"):
        fitted(key).score(Outputs(far.logits, {"zz": far.features["z"]}))


def test_the_table_has_the_papers_twelve_and_more() -> None:
    papers = [m.key for m in METHODS.values() if m.kind in ("predictive", "post-hoc")]
    assert len(papers) == 11
    assert [m.key for m in METHODS.values() if m.uses_ood] == ["goen", "goen_m_ood"]
