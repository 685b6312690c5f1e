"""Every method of the benchmark goes through the same checks, GOEN and goen-m as all others.

Features are blobs; the classifiers on them are trained here with their own losses, so the
predictive methods are checked as the rest: by their scores of OOD features.
"""

import copy
import inspect
import json
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from goen.detectors import CueDetector, Detector, Goen, GoenM, SimpleDetector
from goen.detectors.calibration_head import HeadConfig
from goen.errors import FitError, NotFittedError, UsageError
from goen.models.backbone import NetworkConfig, Scale
from goen.models.classifiers import CLASSIFIERS, Classifier, MixtureOfExperts
from goen.models.ensemble import ensemble
from goen.outputs import Outputs
from goen.studies import METHODS, Material, Method
from goen.studies.methods import Labelled

CLASSES, DIM = 4, 16
KINDS = {"standard": "linear", "goen": "linear"}

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())

# The checks that do not apply to a method, and why.
LOGITS_ALONE = "it reads no feature, so none can be missing"
NOTHING_TO_FIT = "its fit learns nothing, so there is nothing to forget and nothing to miss"
NOT_APPLICABLE: dict[str, dict[str, str]] = {
    "needs a fit": dict.fromkeys(
        "max_softmax mc_dropout deep_ensemble evidential epinet mixture_of_experts energy odin "
        "max_logit gen davis davis_std".split(),
        NOTHING_TO_FIT,
    ),
    "needs a feature": dict.fromkeys(
        "max_softmax temperature_scaling mc_dropout deep_ensemble evidential epinet "
        "mixture_of_experts energy odin max_logit gen davis davis_std".split(),
        LOGITS_ALONE,
    ),
    "distinct scores": {"masf": "a p-value has as many steps as its class has training images"},
}


def methods_for(check: str) -> pytest.MarkDecorator:
    chosen = {k: m for k, m in METHODS.items() if k not in NOT_APPLICABLE[check]}
    return pytest.mark.parametrize("method", chosen.values(), ids=chosen.keys())


@cache
def axes() -> Tensor:
    """Sixteen directions at right angles, none along a feature: a class is not one feature."""
    generator = torch.Generator().manual_seed(3)
    return torch.linalg.qr(torch.randn(DIM, DIM, generator=generator)).Q


def centres() -> Tensor:
    """Of four classes, at right angles."""
    return 8 * axes()[:CLASSES]


def id_features(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    spread = torch.linspace(0.2, 1.0, DIM)
    around = spread * torch.randn(count, DIM, generator=generator) @ axes()
    return centres()[labels] + around, labels


def ood_features(count: int, seed: int) -> Tensor:
    """Between two classes, nearer to nothing, and off to a side where no class ever goes."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.arange(count) % CLASSES
    between = 0.3 * (centres()[first] + centres()[(first + 1) % CLASSES])
    aside = 4 * axes()[CLASSES]
    return between + aside + 0.3 * torch.randn(count, DIM, generator=generator)


@cache
def classifier(kind: str, seed: int) -> Classifier:
    """A classifier trained on the blobs with its own loss."""
    features, labels = id_features(400, seed=1)
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


def network_outputs(method: Method, features: Tensor) -> Outputs:
    """The outputs of the method's network for these features."""
    with torch.no_grad():
        if method.network == "ensemble":
            members = [classifier("linear", seed).predict(features) for seed in range(5)]
            return ensemble([Outputs(member.logits, {}) for member in members])
        kind = KINDS.get(method.network, method.network)
        logits, uncertainty = classifier(kind, 0).predict(features)
    scales = {"layer2": features[:, ::2], "layer4": features, "z": features}
    return Outputs(logits, scales, uncertainty)


def network() -> SimpleNamespace:
    """What methods read of a network."""
    two = ("layer2", "layer4")
    scales = tuple(Scale(name, DIM, 1) for name in two)
    config = NetworkConfig()
    return SimpleNamespace(
        classifier=classifier("linear", 0), two_scales=two, scales=scales, config=config
    )


def material(method: Method, seed: int = 1) -> Material:
    features, labels = id_features(400, seed)
    held, held_labels = id_features(120, seed + 100)
    aside = ood_features(120, seed + 200)
    sets = {
        "train": Labelled(network_outputs(method, features), labels),
        "calibration": Labelled(network_outputs(method, held), held_labels),
        "ood:aside": Labelled(network_outputs(method, aside), torch.zeros(120, dtype=torch.int64)),
    }
    declared = {r: s for r, s in sets.items() if r.partition(":")[0] in method.fits_on}
    return Material(network(), HeadConfig(batch_size=16), declared)  # type: ignore[arg-type]


@cache
def fitted(key: str) -> Detector:
    return METHODS[key].fit(material(METHODS[key]))


def far_and_near(method: Method) -> tuple[Outputs, Outputs]:
    return network_outputs(method, ood_features(200, 7)), network_outputs(
        method, id_features(200, 8)[0]
    )


@every_method
def test_ood_features_score_higher(method: Method) -> None:
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


@methods_for("distinct scores")
def test_nothing_saturates(method: Method) -> None:
    for outputs in far_and_near(method):
        assert len(fitted(method.key).score(outputs).unique()) > 190


@every_method
def test_an_image_is_scored_alone(method: Method) -> None:
    outputs = network_outputs(method, torch.cat([ood_features(40, 9), id_features(41, 10)[0]]))
    whole = fitted(method.key).score(outputs)
    one_by_one = torch.cat([fitted(method.key).score(outputs[i : i + 1]) for i in range(81)])
    assert torch.allclose(one_by_one, whole, rtol=1e-6, atol=1e-8)
    order = torch.randperm(81, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(fitted(method.key).score(outputs[order]), whole[order], rtol=1e-6)


@every_method
def test_no_images_no_scores(method: Method) -> None:
    outputs = network_outputs(method, id_features(4, 10)[0])
    assert fitted(method.key).score(outputs[:0]).shape == (0,)


@every_method
def test_inputs_stay_as_they_are(method: Method) -> None:
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
        network(),  # type: ignore[arg-type]
        HeadConfig(),
        {},
    )
    if method.fits_on:
        with pytest.raises(UsageError, match="but declares nothing in its fits_on"):
            method.fit(nothing)
    else:
        method.fit(nothing)


def blank(detector: Detector) -> Detector:
    """The same settings, not fitted: a constructor stores its arguments under their names."""
    names = inspect.signature(type(detector)).parameters
    return type(detector)(**{name: getattr(detector, name) for name in names})


def loaded(detector: Detector) -> Detector:
    """The detector again, of what it saves."""
    if isinstance(detector, CueDetector):
        config = json.loads(json.dumps(detector.config()))  # as a manifest keeps it
        return type(detector).from_state(config, detector.state())
    assert isinstance(detector, SimpleDetector)
    other = blank(detector)
    assert isinstance(other, SimpleDetector)
    return other.load_state(detector.state())


def refit(detector: Detector, given: Material) -> Detector:
    """Call ``fit`` with everything that the method declared."""
    if isinstance(detector, CueDetector):
        held_out = given.sets.get("calibration")
        more: Mapping[str, object] = {"held_out": held_out and held_out.outputs, "ood": given.ood}
        return detector.fit(*given["train"], **more)  # type: ignore[arg-type]
    labelled = [*given.sets.values(), some_training_images()]
    return detector.fit(*labelled[0])


def some_training_images() -> Labelled:
    features, labels = id_features(80, 5)
    uncertainty = features.norm(dim=1)
    return Labelled(Outputs(features[:, :CLASSES], {"z": features}, uncertainty), labels)


@every_method
def test_fit_returns_the_detector(method: Method) -> None:
    detector = blank(fitted(method.key))
    assert refit(detector, material(method)) is detector
    outputs, _ = far_and_near(method)
    assert torch.equal(detector.score(outputs), fitted(method.key).score(outputs))


@methods_for("needs a fit")
def test_a_second_fit_forgets_the_first(method: Method) -> None:
    detector = blank(fitted(method.key))
    _, outputs = far_and_near(method)
    moved = material(method, seed=77)
    if "ood" in method.fits_on:  # and it forgets that there were any
        without = {role: part for role, part in moved.sets.items() if not role.startswith("ood:")}
        moved = Material(moved.network, moved.head, without)
    refit(detector, moved)
    assert not torch.equal(detector.score(outputs), fitted(method.key).score(outputs))
    refit(detector, material(method))
    assert torch.equal(detector.score(outputs), fitted(method.key).score(outputs))
    refit(detector, moved)
    fresh = refit(blank(detector), moved)
    assert torch.equal(detector.score(outputs), fresh.score(outputs))
    if isinstance(detector, CueDetector):
        assert not detector.has_probability


@every_method
def test_a_saved_state_scores_the_same(method: Method) -> None:
    outputs, _ = far_and_near(method)
    detector = fitted(method.key)
    assert isinstance(detector, SimpleDetector | CueDetector)
    assert all(isinstance(value, Tensor) for value in detector.state().values())
    again = loaded(detector)
    assert torch.equal(again.score(outputs), detector.score(outputs))
    if isinstance(detector, CueDetector):
        assert isinstance(again, CueDetector)
        assert detector.has_probability == again.has_probability == method.uses_ood
        assert again.has_cue_p_values == detector.has_cue_p_values
        assert json.dumps(again.config()) == json.dumps(detector.config())


@methods_for("needs a fit")
def test_without_a_fit_there_is_no_score_and_no_state(method: Method) -> None:
    detector = blank(fitted(method.key))
    outputs, _ = far_and_near(method)
    for use in (lambda: detector.score(outputs), detector.state):
        with pytest.raises(NotFittedError, match=r"is not fitted"):
            use()
    loading = "from_state" if isinstance(detector, CueDetector) else "load_state"
    assert hasattr(detector, loading)
    with pytest.raises(NotFittedError, match=rf"Call fit\(outputs, labels\), or .*{loading}\("):
        detector.score(outputs)


@every_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(
    method: Method, mode: type[torch.no_grad] | type[torch.inference_mode]
) -> None:
    given, (far, _) = material(method), far_and_near(method)
    expected = fitted(method.key).score(far)
    with mode():
        detector = method.fit(given)
    assert torch.equal(detector.score(far), expected)
    if isinstance(detector, Goen | GoenM):
        detector.update(*given["train"])  # outside of the mode


@every_method
def test_torchs_default_device_and_type_do_not_matter(method: Method) -> None:
    given, (far, _) = material(method), far_and_near(method)
    expected = fitted(method.key).score(far)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            detector = method.fit(given)
            scores, again = detector.score(far), loaded(detector).score(far)
            if isinstance(detector, CueDetector):
                detector.cue_p_values(detector.cues(far))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(scores, expected)
    assert torch.equal(again, expected)


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_are_scored_too(method: Method, dtype: torch.dtype) -> None:
    far, _ = far_and_near(method)
    features = {name: f.to(dtype) for name, f in far.features.items()}
    detector = fitted(method.key)
    scores = detector.score(Outputs(far.logits.to(dtype), features, far.uncertainty))
    reference = detector.score(far)
    assert scores.dtype == torch.float64
    scale = reference.std().clamp_min(1e-6)
    assert ((scores - reference).abs() / scale).max() < 0.25


@every_method
def test_outputs_that_are_not_finite_are_refused(method: Method) -> None:
    far, _ = far_and_near(method)
    broken = Outputs(far.logits.clone(), {k: v.clone() for k, v in far.features.items()})
    broken.logits[3] = torch.nan
    for values in broken.features.values():
        values[3] = torch.nan
    uncertainty = None if far.uncertainty is None else far.uncertainty.clone()
    if uncertainty is not None:
        uncertainty[3] = torch.nan
    with pytest.raises(UsageError):
        fitted(method.key).score(Outputs(broken.logits, broken.features, uncertainty))


@methods_for("needs a fit")
def test_training_images_that_are_not_finite_are_refused(method: Method) -> None:
    given = material(method)
    role = method.fits_on[0]
    given[role].outputs.logits[3] = torch.nan
    for values in given[role].outputs.features.values():
        values[3] = torch.nan
    with pytest.raises(FitError):
        method.fit(given)


@every_method
def test_features_of_other_images_than_the_logits_are_refused(method: Method) -> None:
    far, _ = far_and_near(method)
    if not far.features:  # an ensemble gives logits alone
        far = Outputs(far.logits, {"z": far.logits}, far.uncertainty)
    expected = "logits have 200 rows, feature '[a-z0-9]+' has 100"
    mixed = Outputs(far.logits, {k: v[:100] for k, v in far.features.items()}, far.uncertainty)
    with pytest.raises(UsageError, match=expected):
        fitted(method.key).score(mixed)
    with pytest.raises(UsageError, match=expected):
        blank(fitted(method.key)).fit(mixed, torch.zeros(200, dtype=torch.int64))
    if isinstance(detector := blank(fitted(method.key)), Goen | GoenM):
        with pytest.raises(UsageError, match=expected):
            detector.update(mixed, torch.zeros(200, dtype=torch.int64))
        with pytest.raises(UsageError, match=expected):
            detector.fit(*material(method)["train"], held_out=mixed)


@pytest.mark.parametrize("key", ["temperature_scaling", "goen", "goen_m", "goen_m_ood"])
@pytest.mark.parametrize("columns", [[0, 1, 2], [0, 1, 2, 3, 3]], ids=len)
def test_another_number_of_classes_is_refused(key: str, columns: list[int]) -> None:
    far, _ = far_and_near(METHODS[key])
    detector = fitted(key)
    message = f"{type(detector).__name__} was fitted on outputs of 4 classes, got {len(columns)}"
    for once_more in (detector, loaded(detector)):
        with pytest.raises(UsageError, match=message):
            once_more.score(Outputs(far.logits[:, columns], far.features))


@every_method
def test_an_image_without_its_axis_is_refused(method: Method) -> None:
    far, _ = far_and_near(method)
    one = Outputs(far.logits[0], {name: rows[0] for name, rows in far.features.items()})
    with pytest.raises(UsageError, match=r"Expected rows of shape \(N, D\), got \(4,\)"):
        fitted(method.key).score(one)


@methods_for("needs a feature")
def test_a_feature_that_is_not_there_is_named(method: Method) -> None:
    far, _ = far_and_near(method)
    missing = "layer2" if "goen_m" in method.key or method.key in ("masf", "mm_pp") else "z"
    with pytest.raises(UsageError, match=f"Unknown feature '{missing}'"):
        fitted(method.key).score(Outputs(far.logits, {"zz": far.features["z"]}))


def test_the_table_of_exceptions_is_that_of_the_detectors() -> None:
    for check in NOT_APPLICABLE.values():
        assert check.keys() <= METHODS.keys()
    for key in METHODS:
        detector = fitted(key)
        needs_fit = isinstance(detector, CueDetector) or detector.needs_fit  # type: ignore[attr-defined]
        assert needs_fit == (key not in NOT_APPLICABLE["needs a fit"])
        reads = isinstance(detector, CueDetector) or hasattr(detector, "feature")
        assert reads == (key not in NOT_APPLICABLE["needs a feature"])


@every_method
def test_every_method_is_printed_with_its_settings(method: Method) -> None:
    detector = fitted(method.key)
    printed = repr(detector)
    assert printed.startswith(f"{type(detector).__name__}(")
    assert printed.endswith(")")
    assert printed == repr(blank(detector))
    assert "tensor(" not in printed
    assert len(printed) < 200
    if method.key in ("vim", "react"):
        assert "weight=<4×16 tensor>, bias=<4 tensor>" in printed
    if method.key == "fdbd":
        assert printed == "FDBD(weight=<4×16 tensor>)"
    if method.key == "mahalanobis_pp":
        assert printed == "Mahalanobis(normalise=True)"


def test_the_table_has_the_papers_twelve_and_more() -> None:
    papers = [m.key for m in METHODS.values() if m.kind in ("predictive", "post-hoc")]
    assert len(papers) == 11
    assert [m.key for m in METHODS.values() if m.uses_ood] == ["goen", "goen_m_ood"]
