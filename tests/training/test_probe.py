"""The linear probe against scikit-learn, and the gate that is made with it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

import goen
from goen.cli.options.model import GateOptions
from goen.data import ImageSet
from goen.errors import ArtifactError, FitError, LeakError, UsageError
from goen.features.loaded_model import LoadedModel
from goen.models.efficientnet_lite import EfficientNetLite
from goen.models.seeding import seeded
from goen.outputs import check_classifier
from goen.training import probe
from goen.training.probe import STRENGTHS, fit_probe
from tests.features import tiny_models


def images(count: int, seed: int, classes: int = 3, side: int = 12) -> ImageSet:
    """Noise around a colour for each class, which overlap."""
    rng = np.random.RandomState(seed)
    labels = np.arange(count) % classes
    colours = np.random.RandomState(0).randint(60, 190, (classes, 3, 1, 1))
    colours = colours[labels] + rng.normal(0, 40, (count, 3, 1, 1))
    pixels = (colours + rng.normal(0, 20, (count, 3, side, side))).clip(0, 255)
    names = tuple(f"class {i}" for i in range(classes))
    return ImageSet(f"colours {seed}", pixels.astype(np.uint8), labels, names)


def small_net(pixelwise: bool = False) -> nn.Module:
    with seeded(1):
        body = [
            nn.Conv2d(3, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        ]
        end = [nn.Conv2d(16, 7, 1), nn.Flatten()] if pixelwise else [nn.Flatten(), nn.Linear(16, 7)]
        return nn.Sequential(*body, *end)


@pytest.mark.parametrize(("classes", "pixelwise"), [(3, False), (2, False), (3, True)])
def test_it_is_the_regression_of_scikit_learn(classes: int, pixelwise: bool) -> None:
    train, validation = images(60, 1, classes), images(40, 2, classes)
    model = small_net(pixelwise)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = fit_probe(model, train, validation)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)

    middle, name = found.network.layers
    assert middle != name
    alone = fit_probe(model, train, validation, layers=[name])
    assert alone.network.layers == (name,)
    with torch.inference_mode():
        body = model[:5].eval()
        features, others = (
            body(torch.from_numpy(part.read()).float() / 255).flatten(1).double().numpy()
            for part in (train, validation)
        )
    scaler = StandardScaler().fit(features)
    losses = {}
    for strength in STRENGTHS:
        regression = LogisticRegression(C=strength / 60, max_iter=5000, tol=1e-8)
        regression.fit(scaler.transform(features), train.labels)
        logs = regression.predict_log_proba(scaler.transform(others))
        losses[strength] = -logs[np.arange(40), validation.labels].mean()
    for strength, loss in found.losses.items():
        assert loss == pytest.approx(losses[strength], rel=0.01)
    assert found.losses[found.strength] == min(found.losses.values())
    regression = LogisticRegression(C=found.strength / 60, max_iter=5000, tol=1e-8)
    regression.fit(scaler.transform(features), train.labels)
    outputs = goen.extract(found.network, validation)
    expected = regression.predict_proba(scaler.transform(others))
    assert np.allclose(outputs.logits.softmax(1).numpy(), expected, atol=0.01)
    assert found.accuracy == (outputs.logits.argmax(1) == outputs.labels).float().mean()
    assert check_classifier(outputs).feature == name
    assert found.images == 60


def test_the_search_ends_when_the_loss_rises_twice() -> None:
    found = fit_probe(small_net(), images(12, 1), images(300, 2))
    values = [*found.losses.values()]
    assert len(values) < len(STRENGTHS)
    assert values[-1] > min(values) < values[-2]
    assert values.index(min(values)) == len(values) - 3


def test_the_same_arguments_give_the_same_network() -> None:
    one, two = (fit_probe(small_net(), images(60, 1), images(40, 2)) for _ in range(2))
    assert torch.equal(one.network.model[6].weight, two.network.model[6].weight)
    assert one.losses == two.losses


def test_of_many_images_every_class_is_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([0] * 90 + [1] * 6 + [2] * 4)
    rows = probe._drawn(labels, 20)
    assert np.bincount(labels[rows]).tolist() == [10, 6, 4]
    assert rows.tolist() == sorted({*rows.tolist()})
    assert not np.array_equal(rows[:10], np.arange(10))  # by a permutation, not the first
    assert probe._drawn(labels, 100).tolist() == list(range(100))
    monkeypatch.setattr(probe, "MOST_IMAGES", 30)
    assert fit_probe(small_net(), images(60, 1), images(40, 2)).images == 30


@pytest.mark.parametrize(
    ("side", "expected"), [(32, 160), (64, 160), (96, 192), (112, 224), (300, 224)]
)
def test_small_images_are_not_enlarged_more_than_they_need(side: int, expected: int) -> None:
    own = goen.Preprocess((0.5,), (0.5,), 224)
    assert probe._resized(own, side) == replace(own, size=expected)


@pytest.mark.xdist_group("transformers")
def test_a_classifier_of_the_class_token_is_replaced(tmp_path: Path) -> None:
    folder = tiny_models.saved("image", tmp_path / "vit")
    train, validation, held_out = (images(30, seed, classes=2) for seed in (1, 2, 3))
    found = fit_probe(f"hf:{folder}", train, validation)
    assert found.network.layers[-1] == "classifier:input"  # the class token, whatever tokens are
    assert found.network.preprocess == tiny_models.KINDS["image"].preprocess  # no other size
    gate = goen.Gate.fit(found.network, train, held_out, detector="energy")
    gate.save(tmp_path / "gate")
    # Its two classes are not the classes that the folder's config has.
    again = GateOptions(model=f"hf:{folder}").open(str(tmp_path / "gate"))
    assert len(again.classes) == 2 != len(tiny_models.CLASSES)
    assert np.allclose(again.predict(validation).score, gate.predict(validation).score, atol=1e-5)


def test_a_gate_with_a_known_architecture_needs_no_model(tmp_path: Path) -> None:
    with seeded(0):
        network = EfficientNetLite("efficientnet-lite0", 1000)
    preprocess = goen.Preprocess((0.5,), (0.5,), 32)
    loaded = LoadedModel(network.eval(), "pretrained:efficientnet-lite0", (), lambda: preprocess)
    train, validation, held_out = images(30, 1), images(30, 2), images(60, 3)
    found = fit_probe(loaded, train, validation, size=32)
    assert found.backbone == "pretrained:efficientnet-lite0"
    assert found.network.preprocess == preprocess
    gate = goen.Gate.fit(found.network, train, held_out, detector="energy")
    gate.save(tmp_path / "gate")
    again = goen.load(tmp_path / "gate")
    assert again.classes == train.classes
    assert np.array_equal(again.predict(validation).score, gate.predict(validation).score)
    with pytest.raises(ArtifactError, match="contains its own network"):
        goen.load(tmp_path / "gate", model=network)


def test_sets_that_do_not_fit_are_refused() -> None:
    train, validation = images(30, 1), images(30, 2)
    with pytest.raises(UsageError, match="need the same, in the same order"):
        fit_probe(small_net(), train, images(30, 2, classes=2))
    with pytest.raises(
        UsageError, match="colours 1 has no images of class 0: give training images"
    ):
        fit_probe(small_net(), train.take(np.flatnonzero(train.labels)), validation)
    with pytest.raises(UsageError, match="colours 2 has no images: validation images"):
        fit_probe(small_net(), train, validation.take([]))
    with pytest.raises(UsageError, match="two classes or more; colours 1 has one"):
        fit_probe(small_net(), images(9, 1, classes=1), images(9, 2, classes=1))
    with pytest.raises(LeakError, match="shares 30"):
        fit_probe(small_net(), train, train)


def test_networks_that_do_not_fit_are_refused() -> None:
    train, validation = images(30, 1), images(30, 2)
    curved = nn.Sequential(small_net(), nn.Sigmoid())
    with pytest.raises(UsageError, match="no linear function of one of its features"):
        fit_probe(curved, train, validation)
    broken = small_net()
    nn.init.constant_(broken[0].bias, float("nan"))
    with pytest.raises((UsageError, FitError), match=r"NaN or infinity|no linear function"):
        fit_probe(broken, train, validation)
    with pytest.raises(UsageError, match="Unknown pretrained network"):
        fit_probe("efficientnet-b7", train, validation)
