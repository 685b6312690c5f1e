import inspect
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import goen.detectors
from goen.detectors import (
    FDBD,
    GEN,
    KNN,
    ClassMixture,
    Detector,
    Energy,
    Goen,
    GoenM,
    Mahalanobis,
    PytorchOod,
    ReAct,
    RelativeMahalanobis,
    ViM,
)
from goen.detectors.calibration_head import HeadConfig
from goen.errors import FitError, NotFittedError, UsageError
from goen.outputs import LinearClassifier, Outputs

CLASSES, WIDTH = 3, 4


class Centre(Detector):
    """The distance to the mean of the training rows."""

    name = "centre"
    mean_: Tensor

    def __init__(self, *, feature: str | None = None, power: float = 1.0) -> None:
        self.feature = feature
        self.power = power

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.mean_ = self.feature_rows(outputs).mean(dim=0)

    def _score(self, outputs: Outputs) -> Tensor:
        return (self.feature_rows(outputs) - self.mean_).norm(dim=1) ** self.power


class LogitFree:
    """With pytorch-ood's methods for features."""

    def fit_features(self, x: Tensor, y: Tensor) -> None:
        self.centre = x.mean(0)

    def predict_features(self, x: Tensor) -> Tensor:
        return (x - self.centre).norm(dim=1)

    def __repr__(self) -> str:
        return "LogitFree()"


def outputs(names: str, seed: int = 0, count: int = 60) -> Outputs:
    """Features of these names, each of other values, and logits."""
    labels = torch.arange(count) % CLASSES
    features = {}
    for name in names.split():
        g = torch.Generator().manual_seed(1000 * seed + ord(name))
        features[name] = 4 * torch.eye(WIDTH)[labels] + torch.randn(count, WIDTH, generator=g)
    g = torch.Generator().manual_seed(seed)
    logits = 4 * torch.eye(CLASSES)[labels] + torch.randn(count, CLASSES, generator=g)
    return Outputs(logits, features)


LABELS = torch.arange(60) % CLASSES

# Every detector that measures one feature, the last one if not told otherwise.
MEASURING: dict[str, Callable[..., Detector]] = {
    "template": Centre,
    "mahalanobis": Mahalanobis,
    "relative mahalanobis": RelativeMahalanobis,
    "knn": partial(KNN, k=5),
    "goen": Goen,
    "class mixture": ClassMixture,
    "pytorch-ood": lambda **given: PytorchOod(LogitFree(), **given),
}
measuring = pytest.mark.parametrize("make", MEASURING.values(), ids=MEASURING.keys())


@measuring
def test_the_last_feature_of_the_fit_is_measured(make: Callable[..., Detector]) -> None:
    detector = make().fit(outputs("a b"), LABELS)
    alone = make().fit(outputs("b"), LABELS)
    named = make(feature="b").fit(outputs("a b"), LABELS)
    probe = outputs("a b", seed=1)
    assert torch.equal(detector.score(probe), named.score(probe))
    assert torch.equal(detector.score(probe), alone.score(probe))
    assert not torch.equal(detector.score(probe), make(feature="a").fit(probe, LABELS).score(probe))


@measuring
def test_it_stays_that_feature_for_outputs_with_others(make: Callable[..., Detector]) -> None:
    detector = make().fit(outputs("a b"), LABELS)
    probe, further = outputs("a b", seed=1), outputs("a b c", seed=1)
    assert torch.equal(detector.score(further), detector.score(probe))
    turned = Outputs(probe.logits, {name: probe.features[name] for name in ("b", "a")})
    assert torch.equal(detector.score(turned), detector.score(probe))
    with pytest.raises(UsageError, match="Unknown feature 'b'"):
        detector.score(outputs("a c"))
    refitted = detector.fit(outputs("a b c"), LABELS)
    assert torch.equal(
        refitted.score(further), make(feature="c").fit(outputs("c"), LABELS).score(further)
    )


@measuring
def test_a_named_feature_wins(make: Callable[..., Detector]) -> None:
    detector = make(feature="a").fit(outputs("a b"), LABELS)
    alone = make().fit(outputs("a"), LABELS)
    probe = outputs("a b", seed=1)
    assert torch.equal(detector.score(probe), alone.score(probe))
    for missing in (outputs("b"), outputs("b c")):
        with pytest.raises(UsageError, match="Unknown feature 'a'"):
            make(feature="a").fit(missing, LABELS)


@measuring
@pytest.mark.parametrize("feature", [3, 3.5, ("a", 3)], ids=str)
def test_a_feature_is_named_by_a_string(make: Callable[..., Detector], feature: object) -> None:
    with pytest.raises(UsageError, match=r"(named by a string|by its name|one feature).*, got"):
        make(feature=feature).fit(outputs("a b"), LABELS)


@pytest.mark.parametrize("make", [make for name, make in MEASURING.items() if name != "knn"])
def test_one_feature_is_measured_not_two(make: Callable[..., Detector]) -> None:
    with pytest.raises(UsageError, match=r"[Oo]ne feature.*got .*\('a', 'b'\)"):
        make(feature=("a", "b")).fit(outputs("a b"), LABELS)


@measuring
def test_logits_alone_are_refused_by_what_measures_a_feature(
    make: Callable[..., Detector],
) -> None:
    with pytest.raises(UsageError, match="these outputs have logits alone"):
        make().fit(outputs(""), LABELS)


@pytest.mark.parametrize("make", [ViM, ReAct, FDBD])
def test_the_feature_of_the_classifier_is_measured(make: Callable[[], Detector]) -> None:
    def classified(feature: str, seed: int = 0) -> Outputs:
        given = outputs("a b", seed)
        weight = torch.eye(CLASSES, WIDTH)
        classifier = LinearClassifier(weight, torch.zeros(CLASSES), feature)
        return Outputs(given.features[feature] @ weight.T, given.features, classifier=classifier)

    for feature, other in ("ab", "ba"):
        detector = make().fit(classified(feature), LABELS)
        assert detector.features == (feature,)
        probe = classified(feature, 1)
        alone = Outputs(probe.logits, {feature: probe.features[feature]})
        assert torch.equal(detector.score(probe), detector.score(alone))
        with pytest.raises(UsageError, match=f"Unknown feature '{feature}'"):
            detector.score(Outputs(probe.logits, {other: probe.features[other]}))


def test_the_state_is_what_was_learnt_and_the_features_are_kept_beside_it() -> None:
    fitted = Centre().fit(outputs("a ü"), LABELS)
    further = outputs("a ü c", seed=1)
    assert fitted.state().keys() == {"mean"}
    assert (fitted.widths_, fitted.num_classes_) == ({"ü": WIDTH}, CLASSES)
    loaded = Centre().load_state(fitted.state(), {"ü": WIDTH}, CLASSES)
    assert torch.equal(loaded.score(further), fitted.score(further))
    # What was loaded later forgets the choice of what was loaded before.
    loaded.load_state({"mean": torch.zeros(WIDTH)}, {"c": WIDTH}, CLASSES)
    assert torch.allclose(loaded.score(further).float(), further.features["c"].norm(dim=1))


def test_goen_m_measures_all_layers_of_the_fit() -> None:
    detector = GoenM().fit(outputs("a b"), LABELS)
    assert detector.features == ("a", "b")
    probe, further = outputs("a b", seed=1), outputs("a b c", seed=1)
    assert torch.equal(detector.score(further), detector.score(probe))
    assert GoenM(["a"]).fit(outputs("a b"), LABELS).features == ("a",)
    with pytest.raises(UsageError, match="Unknown feature 'a'"):
        GoenM(["a"]).fit(outputs("b c"), LABELS)
    with pytest.raises(UsageError, match="Unknown feature 'b'"):
        detector.score(outputs("a c"))


@pytest.mark.parametrize(
    "make", [*(make for name, make in MEASURING.items() if name != "pytorch-ood"), GoenM]
)
def test_a_fit_that_fails_changes_nothing(make: Callable[..., Detector]) -> None:
    detector = make().fit(outputs("a b"), LABELS)
    probe = outputs("a b c", seed=1)
    before = detector.score(probe)
    for rows, labels in (
        (outputs("a b c"), torch.full((60,), CLASSES)),  # no such class
        (outputs("a b c"), LABELS[:9]),
        (outputs(""), LABELS),
        (outputs("a b c")[:0], LABELS[:0]),
    ):
        with pytest.raises(UsageError):
            detector.fit(rows, labels)
        assert torch.equal(detector.score(probe), before)


def test_a_template_that_needs_a_fit_says_so() -> None:
    for use in (Centre().score, Centre().cues, Centre().calibrate):
        with pytest.raises(NotFittedError, match="This Centre is not fitted"):
            use(outputs("a"))


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda scores: scores[:, None], r"a tensor \(60, 1\)"),
        (lambda scores: scores[:5], r"a tensor \(5,\)"),
        (lambda scores: scores.mean(), r"a tensor \(\)"),
        (lambda scores: scores.numpy(), "ndarray"),
        (lambda scores: None, "NoneType"),
    ],
)
def test_a_template_gives_one_score_per_image(change: Callable[[Tensor], Tensor], got: str) -> None:
    class Changed(Detector):
        name = "changed"
        needs_fit = False

        def _fit(self, outputs: Outputs, labels: Tensor) -> None:
            pass

        def _score(self, outputs: Outputs) -> Tensor:
            return change(outputs.logits[:, 0])

    expected = rf"Changed\._score should give .*, a tensor \(60,\), got {got}\."
    with pytest.raises(UsageError, match=expected):
        Changed().score(outputs("a"))


def test_scores_that_are_not_finite_are_counted() -> None:
    broken = outputs("a")
    broken.features["a"][3:5] = torch.nan
    detector = Centre().fit(outputs("a"), LABELS)
    with pytest.raises(UsageError, match="2 of 60 scores of Centre are not finite"):
        detector.score(broken)
    no_logits = outputs("a b")
    no_logits.logits[7] = torch.nan
    with pytest.raises(UsageError, match="1 of 60 scores of GoenM are not finite"):
        GoenM().fit(outputs("a b"), LABELS).score(no_logits)


@pytest.mark.parametrize(
    ("detector", "expected"),
    [
        (Energy(), "Energy()"),
        (Mahalanobis(), "Mahalanobis()"),
        (Mahalanobis(normalise=True), "Mahalanobis(normalise=True)"),
        (Mahalanobis(feature="z", ridge=1e-6), "Mahalanobis(feature='z')"),
        (KNN(feature=("layer2", "z")), "KNN(feature=('layer2', 'z'))"),
        (ViM(dim=2), "ViM(dim=2)"),
        (Goen(), "Goen()"),
        (Goen(shrinkage="oas"), "Goen(shrinkage='oas')"),
        (
            Goen(head=HeadConfig(epochs=3)),
            "Goen(head=HeadConfig(epochs=3, batch_size=128, learning_rate=0.001, patience=5, "
            "held_out=0.2, seed=42))",
        ),
        (GoenM(), "GoenM()"),
        (GoenM(["a", "b"], rows=10), "GoenM(layers=('a', 'b'), rows=10)"),
        (PytorchOod(LogitFree()), "PytorchOod(detector=LogitFree())"),
        (Centre(power=2.0), "Centre(power=2.0)"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_detector_is_printed_as_it_was_made(detector: Detector, expected: str) -> None:
    assert repr(detector) == str(detector) == expected


@measuring
def test_fitting_does_not_change_how_it_is_printed(make: Callable[..., Detector]) -> None:
    assert repr(make().fit(outputs("a b"), LABELS)) == repr(make())


def test_every_public_detector_can_be_printed() -> None:
    given = {"detector": LogitFree()}
    classes = [getattr(goen.detectors, name) for name in goen.detectors.__all__]
    classes = [c for c in classes if isinstance(c, type) and issubclass(c, Detector)]
    concrete = [c for c in classes if not inspect.isabstract(c)]
    assert GEN in concrete
    for kind in concrete:
        required = [
            name
            for name, parameter in inspect.signature(kind).parameters.items()
            if parameter.default is parameter.empty
        ]
        made = kind(**{name: given[name] for name in required})
        assert repr(made).startswith(f"{kind.__name__}(")
        assert all(f"{name}=" in repr(made) for name in required)
        assert repr(made).count("=") == len(required)  # defaults are left out


class Prepared(Centre):
    """Counts how often it was prepared; refuses a mean above 50."""

    prepared = 0

    def _prepare(self) -> None:
        if float(self.mean_.max()) > 50:
            raise UsageError("too far")
        self.prepared += 1


def test_a_detector_is_prepared_after_a_fit_and_after_loading() -> None:
    detector = Prepared(feature="a").fit(outputs("a"), LABELS)
    detector.score(outputs("a"))
    detector.score(outputs("a"))
    assert detector.prepared == 1
    loaded = Prepared().load_state(detector.state(), {"a": WIDTH}, CLASSES)
    assert loaded.prepared == 1
    far = Outputs(torch.zeros(60, CLASSES), {"a": outputs("a").features["a"] + 100})
    before = detector.score(outputs("a"))
    with pytest.raises(UsageError, match="too far"):
        detector.fit(far, LABELS)
    assert torch.equal(detector.score(outputs("a")), before)


class Calibrated(Centre):
    """Subtracts the mean distance of calibration images; fails where they are too far."""

    name = "calibrated"
    offset_: Tensor

    def calibrates(self, *, with_ood: bool) -> bool:
        return True

    def _calibrate(self, held_out: Outputs, ood: object) -> None:
        self.offset_ = super()._score(held_out).mean()
        if float(self.offset_) > 50:
            raise FitError("too far")

    def _score(self, outputs: Outputs) -> Tensor:
        return super()._score(outputs) - self.offset_


def test_a_calibration_that_fails_takes_the_fit_back() -> None:
    held_out, probe = outputs("a", seed=1), outputs("a", seed=2)
    detector = Calibrated().fit(outputs("a"), LABELS, held_out=held_out)
    before = detector.score(probe)
    assert torch.equal(before, Centre().fit(outputs("a"), LABELS).score(probe) - detector.offset_)
    far = Outputs(held_out.logits, {"a": held_out.features["a"] + 100})
    with pytest.raises(FitError, match="too far"):
        detector.fit(probe, LABELS, held_out=far)
    assert torch.equal(detector.score(probe), before)
    # Without held-out images it is calibrated on the training images.
    again = detector.fit(outputs("a"), LABELS)
    same = Calibrated().fit(outputs("a"), LABELS, held_out=outputs("a"))
    assert torch.equal(again.score(probe), same.score(probe))


def test_a_state_that_cannot_have_been_learnt_is_refused() -> None:
    for state in ({"mean": torch.tensor([torch.nan])}, {"mean": torch.tensor([torch.inf])}):
        with pytest.raises(ValueError, match="its tensor mean should hold finite numbers"):
            Centre().load_state(state, {"a": WIDTH}, CLASSES)


def test_settings_of_other_names_and_types_are_refused() -> None:
    assert Centre.from_settings({"power": 2.0, "feature": None}).settings() == {
        "feature": None,
        "power": 2.0,
    }
    with pytest.raises(ValueError, match="unknown settings: pwer"):
        Centre.from_settings({"pwer": 2.0})
    for wrong in ({"k": "5"}, {"k": [5]}, {"k": 0}, {"feature": []}):
        with pytest.raises(ValueError, match=r"k must be an integer|at least one feature"):
            KNN.from_settings(wrong)
    with pytest.raises(ValueError, match=r"percentile must be a number, .*; got 'high'"):
        ReAct.from_settings({"percentile": "high"})
    with pytest.raises(ValueError, match="its settings are of the wrong type"):
        GoenM.from_settings({"layers": 3})
    with pytest.raises(ValueError, match="normalise should be true or false, got '"):
        Mahalanobis.from_settings({"normalise": {}})
    assert KNN.from_settings({"feature": ["a", "b"]}).feature == ("a", "b")


def test_a_detector_that_is_fitted_at_once_says_so() -> None:
    with pytest.raises(UsageError, match="Centre is fitted on all training images at once: fit it"):
        Centre().fit(outputs("a"), LABELS).update(outputs("a"), LABELS)
