import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor

import goen.detectors
from goen.detectors import (
    FDBD,
    GEN,
    KNN,
    Detector,
    Energy,
    Goen,
    GoenM,
    Mahalanobis,
    PytorchOod,
    ReAct,
    RelativeMahalanobis,
    SimpleDetector,
    ViM,
)
from goen.detectors._base import column_p_values, sorted_columns
from goen.detectors.calibration_head import HeadConfig
from goen.errors import ArtifactError, NotFittedError, UsageError
from goen.outputs import Outputs

CLASSES, WIDTH = 3, 4
WEIGHTS = {"weight": torch.eye(CLASSES, WIDTH), "bias": torch.zeros(CLASSES)}


class Centre(SimpleDetector):
    """The distance to the mean of the training rows."""

    def __init__(self, *, feature: str | None = None, power: float = 1.0) -> None:
        self.feature = feature
        self.power = power

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        return {"mean": self.rows(outputs).mean(dim=0)}

    def _measure(self, outputs: Outputs) -> Tensor:
        mean = (self.fitted_ or {})["mean"]
        return (self.rows(outputs) - mean).norm(dim=1) ** self.power


class LogitFree:
    """With pytorch-ood's methods for features."""

    def fit_features(self, x: Tensor, y: Tensor) -> None:
        self.centre = x.mean(0)

    def predict_features(self, x: Tensor) -> Tensor:
        return (x - self.centre).norm(dim=1)

    def __repr__(self) -> str:
        return "LogitFree()"


def outputs(names: str, seed: int = 0, count: int = 60) -> Outputs:
    """Features of these names, each of other values, and logits of the classifier above."""
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
    "vim": partial(ViM, **WEIGHTS),
    "react": partial(ReAct, **WEIGHTS),
    "fdbd": partial(FDBD, weight=WEIGHTS["weight"]),
    "goen": Goen,
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


def test_the_chosen_feature_is_saved() -> None:
    fitted = Centre().fit(outputs("a ü"), LABELS)
    further = outputs("a ü c", seed=1)
    loaded = Centre().load_state(fitted.state())
    assert torch.equal(loaded.score(further), fitted.score(further))
    named = Centre(feature="a").fit(outputs("a b"), LABELS)
    assert list(named.state()) == ["mean"]
    # What was loaded later forgets the choice of what was loaded before.
    loaded.load_state({"mean": torch.zeros(WIDTH)})
    assert torch.allclose(loaded.score(further).float(), further.features["c"].norm(dim=1))


def test_goen_m_measures_all_layers_of_the_fit() -> None:
    detector = GoenM().fit(outputs("a b"), LABELS)
    assert detector.features == ("a", "b")
    probe, further = outputs("a b", seed=1), outputs("a b c", seed=1)
    assert torch.equal(detector.score(further), detector.score(probe))
    assert GoenM(["a"]).fit(outputs("a b"), LABELS).features == ("a",)
    with pytest.raises(UsageError, match="The outputs lack a; they have b, c"):
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
    for use in (lambda: Centre().score(outputs("a")), Centre().state):
        with pytest.raises(NotFittedError, match="This Centre is not fitted"):
            use()


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
    class Changed(SimpleDetector):
        needs_fit = False

        def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
            return {}

        def _measure(self, outputs: Outputs) -> Tensor:
            return change(outputs.logits[:, 0])

    expected = rf"Changed\._measure should give .*, a tensor \(60,\), got {got}\."
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
        (ViM(**WEIGHTS, dim=2), "ViM(weight=<3×4 tensor>, bias=<3 tensor>, dim=2)"),
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
    tensors = {"weight": WEIGHTS["weight"], "bias": WEIGHTS["bias"], "detector": LogitFree()}
    classes = [getattr(goen.detectors, name) for name in goen.detectors.__all__]
    concrete = [c for c in classes if issubclass(c, Detector) and not inspect.isabstract(c)]
    assert GEN in concrete
    for kind in concrete:
        required = [
            name
            for name, parameter in inspect.signature(kind).parameters.items()
            if parameter.default is parameter.empty
        ]
        made = kind(**{name: tensors[name] for name in required})
        assert repr(made).startswith(f"{kind.__name__}(")
        assert all(f"{name}=" in repr(made) for name in required)
        assert repr(made).count("=") == len(required)  # defaults are left out


def test_columns_are_compared_with_their_own() -> None:
    reference = sorted_columns(torch.tensor([[2.0, 30.0], [3.0, 10.0], [1.0, 20.0]]))
    p = column_p_values(torch.tensor([[2.0, 31.0], [0.0, 10.0]]), reference)
    assert p.tolist() == [[0.75, 0.25], [1.0, 1.0]]


def test_id_cues_are_sorted_when_they_are_set() -> None:
    detector = GoenM().fit(outputs("a"), LABELS, held_out=outputs("a", seed=1))
    cues = detector.cues(outputs("a", seed=2))
    expected = torch.stack(
        [(1 + (detector.id_cues_[:, i] >= cues[:, i, None]).sum(dim=1)) / 61 for i in range(2)],
        dim=1,
    )
    assert torch.allclose(detector.cue_p_values(cues), expected.double())
    # Half as far out as they can be, and more: within the range of each cue, in the same order.
    farthest = torch.tensor([2.0, math.log(3)], dtype=torch.float64)
    detector.calibrate((detector.id_cues_ + farthest) / 2)
    assert float(detector.cue_p_values(cues).min()) > float(expected.min())
    loaded = GoenM.from_state(detector.config(), detector.state())
    assert torch.allclose(loaded.cue_p_values((cues + farthest) / 2), expected.double())


class Prepared(Centre):
    """Counts how often it was prepared; refuses a mean above 50."""

    prepared = 0

    def _prepare(self) -> None:
        mean = (self.fitted_ or {})["mean"]
        if float(mean.max()) > 50:
            raise UsageError("too far")
        self.prepared += 1


def test_a_detector_is_prepared_after_a_fit_and_after_loading() -> None:
    detector = Prepared(feature="a").fit(outputs("a"), LABELS)
    detector.score(outputs("a"))
    detector.score(outputs("a"))
    assert detector.prepared == 1
    assert Prepared(feature="a").load_state(detector.state()).prepared == 1
    far = Outputs(torch.zeros(60, CLASSES), {"a": outputs("a").features["a"] + 100})
    before = detector.score(outputs("a"))
    with pytest.raises(UsageError, match="too far"):
        detector.fit(far, LABELS)
    assert torch.equal(detector.score(outputs("a")), before)


def test_a_state_that_cannot_have_been_learnt_is_one_error() -> None:
    loaded = Centre().load_state({"mean": torch.zeros(WIDTH)})
    for state, message in (
        ({"mean": torch.tensor([torch.nan])}, "state of a fitted Centre: its tensor mean should"),
        (
            {"mean": torch.zeros(2), "feature_name": torch.zeros(2)},
            "the bytes of a name, got torch.f",
        ),
        ({"mean": torch.zeros(2), "feature_name": torch.tensor([255], dtype=torch.uint8)}, "utf-8"),
    ):
        with pytest.raises(ArtifactError, match=message):
            loaded.load_state(state)
    assert torch.equal(loaded.state()["mean"], torch.zeros(WIDTH))
