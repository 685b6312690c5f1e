import inspect
from collections.abc import Callable

import pytest
import torch

import goen.detectors
from goen.detectors import (
    GEN,
    KNN,
    Detector,
    Energy,
    Goen,
    GoenM,
    Mahalanobis,
    PytorchOod,
    ReAct,
    ViM,
)
from goen.detectors.calibration_head import HeadConfig
from tests.detectors.centre import CLASSES, LABELS, WIDTH, Centre, LogitFree, measuring, outputs


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
