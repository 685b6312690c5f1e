"""The arithmetic of recipes that have some of their own."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from goen.data import Protocol
from goen.detectors import Detector, Goen, GoenM
from goen.detectors.calibration_head import HeadConfig
from goen.extraction import extract
from goen.models import Backbone, ResNet18
from goen.outputs import Outputs
from goen.studies.methods import labels_of
from tests.tiny import TINY, tiny_protocol

RECIPES = Path(__file__).parents[1] / "recipes"


@pytest.fixture(scope="module")
def recipes() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RECIPES)
        names = ("adversarial", "sequential_calibration")
        yield {name: importlib.import_module(name) for name in names}


@pytest.fixture(scope="module")
def adversarial(recipes: dict[str, ModuleType]) -> ModuleType:
    return recipes["adversarial"]


@pytest.fixture(scope="module")
def sequential(recipes: dict[str, ModuleType]) -> ModuleType:
    return recipes["sequential_calibration"]


# -- adversarial images --------------------------------------------------------------------------


def product(weights: list[float]) -> object:
    """The objective w·x, whose gradient is w everywhere."""
    w = torch.tensor(weights).view(1, 1, 1, -1)
    return lambda pixels, labels: (pixels * w).sum(dim=(1, 2, 3))


def test_fgsm_is_one_step_by_the_sign_within_8_bits(adversarial: ModuleType) -> None:
    image = torch.tensor([100, 100, 100, 1, 254], dtype=torch.uint8).view(1, 1, 1, 5)
    moved = adversarial.fgsm(image, torch.zeros(1), product([2.0, -0.1, 0.0, -5.0, 1.0]), 4)
    assert moved.dtype == torch.uint8
    assert moved.flatten().tolist() == [104, 96, 100, 0, 255]


def test_pgd_follows_the_gradient_and_stays_near(adversarial: ModuleType) -> None:
    image = torch.tensor([100, 100, 100, 1, 254], dtype=torch.uint8).view(1, 1, 1, 5)
    labels, objective = torch.zeros(1), product([2.0, -0.1, 0.0, -5.0, 1.0])
    few = adversarial.pgd(image, labels, objective, 8, None, steps=3, step_size=2)
    assert few.flatten().tolist() == [106, 94, 100, 0, 255]
    many = adversarial.pgd(image, labels, objective, 8, torch.Generator().manual_seed(0))
    assert many.flatten().tolist()[:2] == [108, 92]
    assert many.flatten().tolist()[3:] == [0, 255]
    assert 92 <= many.flatten()[2] <= 108  # no gradient: where it started
    again = adversarial.pgd(image, labels, objective, 8, torch.Generator().manual_seed(0))
    other = adversarial.pgd(image, labels, objective, 8, torch.Generator().manual_seed(1))
    assert (again == many).all()
    assert (other != many).any()


def test_pgd_finds_the_top_inside_the_ball(adversarial: ModuleType) -> None:
    image = torch.tensor([100, 100], dtype=torch.uint8).view(1, 1, 1, 2)
    top = torch.tensor([103.0, 140.0]).view(1, 1, 1, 2) / 255

    def objective(pixels: Tensor, labels: Tensor) -> Tensor:
        return -(pixels - top).square().sum(dim=(1, 2, 3))

    found = adversarial.pgd(image, torch.zeros(1), objective, 8, None, step_size=0.5)
    assert abs(int(found[0, 0, 0, 0]) - 103) <= 1
    assert found[0, 0, 0, 1] == 108


@pytest.fixture(scope="module")
def fitted() -> tuple[Backbone, dict[str, Detector], Protocol]:
    p = tiny_protocol()
    torch.manual_seed(0)
    network = ResNet18(TINY.network).eval().requires_grad_(False)
    train, labels = extract(network, p.train), labels_of(p.train.labels)
    held_out = extract(network, p.calibration_id)
    ood = {name: extract(network, images) for name, images in p.calibration_ood.items()}
    head = Goen(feature="z", head=HeadConfig(batch_size=16, epochs=4))
    detectors: dict[str, Detector] = {
        "goen": head.fit(train, labels, held_out=held_out, ood=ood),
        "goen_m": GoenM(network.two_scales, rows=70).fit(train, labels, held_out=held_out),
    }
    return network, detectors, p


@pytest.mark.parametrize("name", ["goen", "goen_m"])
def test_the_attacked_score_is_the_detectors_with_its_gradient(
    adversarial: ModuleType, fitted: tuple[Backbone, dict[str, Detector], Protocol], name: str
) -> None:
    network, detectors, p = fitted
    images = torch.from_numpy(p.test.read(range(8)))
    pixels = (images / 255).requires_grad_()
    outputs: Outputs = network(pixels)
    score = adversarial.differentiable_score(detectors[name], outputs)
    expected = detectors[name].score(outputs)
    assert torch.allclose(score.double(), expected, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(score.sum(), pixels)
    # Along the gradient the score changes as much as the gradient says.
    direction = gradient / gradient.flatten(1).norm(dim=1)[:, None, None, None]
    size = 1e-3
    ends = [
        adversarial.differentiable_score(detectors[name], network(pixels.detach() + s * direction))
        for s in (size, -size)
    ]
    slope = (ends[0] - ends[1]) / (2 * size)
    ratio = slope.detach() / gradient.flatten(1).norm(dim=1)
    assert np.median(ratio.numpy()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("name", ["goen", "goen_m"])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_attack_moves_the_score_the_way_it_should(
    adversarial: ModuleType,
    fitted: tuple[Backbone, dict[str, Detector], Protocol],
    name: str,
    sign: int,
) -> None:
    network, detectors, p = fitted
    some = p.test.take(range(20))
    objective = adversarial.score_of(network, detectors[name], sign)
    before = detectors[name].score(extract(network, some))
    moved = adversarial.attacked(some, objective, "pgd", 8, seed=0)
    after = detectors[name].score(extract(network, moved))
    assert (sign * (after - before) > 0).float().mean() > 0.8
    assert np.abs(moved.read().astype(int) - some.read().astype(int)).max() == 8


def test_an_attack_on_the_classifier_lowers_the_probability_of_the_label(
    adversarial: ModuleType, fitted: tuple[Backbone, dict[str, Detector], Protocol]
) -> None:
    network, detectors, p = fitted
    some = p.test.take(range(20))
    moved = adversarial.attacked(some, adversarial.classifier_loss(network), "fgsm", 4, seed=0)
    rows = torch.arange(20), labels_of(some.labels)
    before, after = (extract(network, s).logits.log_softmax(1)[rows] for s in (some, moved))
    assert (after < before).float().mean() > 0.8
    clean = {name: d.score(extract(network, some)).numpy() for name, d in detectors.items()}
    limits = {name: float(np.median(scores)) for name, scores in clean.items()}
    lines = adversarial.measured(extract(network, some), some.labels, detectors, clean, limits)
    found = {(line["method"], line["metric"]): line["value"] for line in lines}
    for name in detectors:
        assert found[name, "auroc"] == 0.5
        assert found[name, "flagged"] == 0.5
    right = (extract(network, some).logits.argmax(1).numpy() == some.labels).mean()
    assert found["classifier", "accuracy"] == right


# -- OOD kinds one after the other ---------------------------------------------------------------


def cloud(x: float, y: float, count: int = 200) -> Tensor:
    """Cues around a place, the third without a meaning."""
    rng = np.random.default_rng(count)
    return torch.from_numpy(rng.normal((x, y, 0), 0.3, (count, 3)))


def test_forgetting_is_the_best_since_arrival_less_the_last(sequential: ModuleType) -> None:
    assert sequential.forgetting([0.5, 0.9, 0.95, 0.7], arrived=1) == pytest.approx(0.25)
    assert sequential.forgetting([0.99, 0.8, 0.9], arrived=1) == pytest.approx(-0.1)
    assert sequential.forgetting([0.9, 0.6], arrived=0) == pytest.approx(0.3)


def test_each_strategy_trains_on_its_own_images_and_from_its_own_head(
    sequential: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"a": cloud(2, 0, 50), "b": cloud(-2, 0, 60), "c": cloud(0, 2, 70)}
    calls: list[tuple[dict[str, int], int | None]] = []

    def noted(
        id_cues: Tensor, ood: dict[str, Tensor], config: HeadConfig, start: int | None
    ) -> tuple[int, list[float]]:
        assert all(torch.equal(kinds[name][: len(cues)], cues) for name, cues in ood.items())
        calls.append(({name: len(cues) for name, cues in ood.items()}, start))
        return len(calls), []

    monkeypatch.setattr(sequential, "train_head", noted)
    heads = sequential.sequences(cloud(0, 0), kinds, HeadConfig(), kept=40)
    assert heads == {"alone": [1, 4, 7], "replay": [2, 5, 8], "joint": [3, 6, 9]}
    assert [calls[head - 1] for head in heads["alone"]] == [
        ({"a": 50}, None), ({"b": 60}, 1), ({"c": 70}, 4),
    ]  # fmt: skip
    assert [calls[head - 1] for head in heads["replay"]] == [
        ({"a": 50}, None), ({"a": 40, "b": 60}, 2), ({"a": 40, "b": 40, "c": 70}, 5),
    ]  # fmt: skip
    assert [calls[head - 1] for head in heads["joint"]] == [
        ({"a": 50}, None), ({"a": 50, "b": 60}, None), ({"a": 50, "b": 60, "c": 70}, None),
    ]  # fmt: skip


def test_every_stage_is_measured_on_every_set(sequential: ModuleType) -> None:
    id_cues, kinds = cloud(0, 0, 400), {"right": cloud(2, 0), "left": cloud(-2, 0)}
    config = HeadConfig(batch_size=32, epochs=40, patience=40, learning_rate=3e-3)
    heads = sequential.sequences(id_cues, kinds, config, kept=40)
    tests = {"test": cloud(0, 0, 300), "right": cloud(2, 0, 300), "left": cloud(-2, 0, 300)}
    lines = sequential.measured(heads, tests, list(kinds))
    found = {(x["strategy"], x["after"], x["dataset"], x["metric"]): x for x in lines}
    assert len(found) == len(lines) == 3 * (2 * 2 + 1)
    lost = {}
    for strategy in heads:
        first, last = (found[strategy, k, "right", "auroc"]["value"] for k in kinds)
        lost[strategy] = found[strategy, "left", "right", "forgetting"]["value"]
        assert lost[strategy] == pytest.approx(first - last)
        assert not found[strategy, "right", "left", "auroc"]["seen_in_calibration"]
        assert found[strategy, "left", "left", "auroc"]["seen_in_calibration"]
        assert found[strategy, "left", "left", "auroc"]["value"] > 0.99
    # The three are the same while there is one kind.
    assert len({found[s, "right", "right", "auroc"]["value"] for s in heads}) == 1
    assert lost["alone"] > max(lost["replay"], lost["joint"], 0.01)
