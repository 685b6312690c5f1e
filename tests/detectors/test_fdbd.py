from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from goen.detectors import FDBD
from goen.errors import FitError, UsageError
from goen.outputs import LinearClassifier, Outputs
from tests.detectors.saving import reloaded


def classifier(classes: int = 4, dim: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    return weight, torch.randn(classes, generator=generator, dtype=torch.float64)


def of(z: Tensor, weight: Tensor, bias: Tensor) -> Outputs:
    classifier = LinearClassifier(weight, bias, "z")
    return Outputs(z @ weight.T + bias, {"z": z}, classifier=classifier)


def rows(count: int, seed: int = 0) -> Tensor:
    return 2 + torch.randn(count, 8, dtype=torch.float64, generator=torch.manual_seed(seed))


def labels(count: int) -> Tensor:
    return torch.arange(count) % 2


def slow(fit: Outputs, other: Outputs, weight: Tensor) -> list[float]:
    w, mean = weight.numpy(), fit.features["z"].numpy().mean(0)
    scores = []
    for logits, z in zip(other.logits.numpy(), other.features["z"].numpy(), strict=True):
        own = int(np.argmax(logits))
        steps = [
            abs(logits[own] - logits[c]) / np.linalg.norm(w[own] - w[c])
            for c in range(len(w))
            if c != own
        ]
        scores.append(-np.mean(steps) / np.linalg.norm(z - mean))
    return scores


@pytest.mark.parametrize("classes", [2, 4, 1000])
def test_it_is_the_papers_formula(classes: int) -> None:
    weight, bias = classifier(classes)
    fit, other = of(rows(100), weight, bias), of(rows(20, 1), weight, bias)
    score = FDBD().fit(fit, labels(100)).score(other)
    assert np.allclose(score.numpy(), slow(fit, other, weight), rtol=1e-10)


def test_by_hand() -> None:
    # At (3, 4): logits 3, -3, 4. To class 0 it is (4 - 3) / sqrt 2, to class 1 (4 + 3) / sqrt 2,
    # and 5 to the mean of the training rows.
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    bias = torch.zeros(3)
    fit = of(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), weight, bias)
    fdbd = FDBD().fit(fit, torch.tensor([0, 1]))
    score = fdbd.score(of(torch.tensor([[3.0, 4.0]]), weight, bias))
    assert score.item() == pytest.approx(-(8 / np.sqrt(2)) / 2 / 5)


def test_a_point_moved_by_its_step_is_on_the_boundary() -> None:
    weight, bias = classifier(2)
    fit = of(rows(50), weight, bias)
    fdbd = FDBD().fit(fit, labels(50))
    z = rows(1, 3)
    outputs = of(z, weight, bias)
    step = -fdbd.score(outputs) * (z - fit.features["z"].mean(0)).norm()
    own = int(outputs.logits.argmax())
    direction = weight[1 - own] - weight[own]
    moved = of(z + step * direction / direction.norm(), weight, bias).logits
    assert moved[0, 0].item() == pytest.approx(moved[0, 1].item())


def test_the_mean_itself_has_a_score() -> None:
    weight, bias = classifier()
    fit = of(rows(64), weight, bias)
    fdbd = FDBD().fit(fit, labels(64))
    middle = fdbd.state()["mean"][None]
    assert fdbd.score(of(middle, weight, bias)).item() < fdbd.score(fit).min().item()
    undecided = Outputs(torch.zeros(1, 4), {"z": middle})
    assert fdbd.score(undecided).item() == 0


def test_classes_of_equal_weights_have_no_boundary() -> None:
    weight, bias = classifier(3)
    z = 3 * (rows(30) - 2)
    fit = of(z, weight, bias)
    winner = int(fit.logits.argmax(1).mode().values)
    twin = torch.cat([weight, weight[[winner]]]), torch.cat([bias, bias[[winner]] - 5])
    doubled = of(z, *twin)
    score = FDBD().fit(doubled, labels(30)).score(doubled)
    plain = FDBD().fit(fit, labels(30)).score(fit)
    won = fit.logits.argmax(1) == winner
    assert 1 < won.sum() < 30
    assert torch.allclose(score[won], plain[won])  # the twin does not count
    assert not torch.isclose(score[~won], plain[~won]).any()  # here it is one class more
    assert torch.isfinite(score).all()


def test_degenerate_classifiers_and_rows_are_refused() -> None:
    weight, bias = classifier()
    with pytest.raises(UsageError, match="at least two"):
        FDBD().fit(of(rows(5), weight[:1], bias[:1]), torch.zeros(5).long())
    same = torch.ones(4, 8).double()
    with pytest.raises(UsageError, match="no boundary"):
        FDBD().fit(of(rows(5), same, bias), labels(5))
    with pytest.raises(FitError, match="All 5 training rows are equal"):
        FDBD().fit(of(rows(1).expand(5, 8), weight, bias), labels(5))
    with pytest.raises(UsageError, match="have no linear classifier"):
        FDBD().fit(Outputs(torch.zeros(4, 5), {"z": rows(4)}), labels(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_narrow_outputs_are_measured_in_float64(dtype: torch.dtype) -> None:
    weight, bias = classifier()
    fit = of(rows(50), weight, bias)
    narrow = replace(fit, logits=fit.logits.to(dtype), features={"z": rows(50).to(dtype)})
    wide = replace(
        narrow, logits=narrow.logits.double(), features={"z": narrow.features["z"].double()}
    )
    fdbd = FDBD()
    expected = fdbd.fit(wide, labels(50)).score(wide)
    assert torch.equal(fdbd.fit(narrow, labels(50)).score(narrow), expected)


def test_the_state_is_all_there_is() -> None:
    weight, bias = classifier()
    fdbd = FDBD().fit(of(rows(100), weight, bias), labels(100))
    other = of(rows(9, 4), weight, bias)
    assert torch.equal(reloaded(fdbd).score(other), fdbd.score(other))
    assert torch.equal(reloaded(fdbd).score(other.keep(["z"])), fdbd.score(other))


def test_a_forged_state_is_refused() -> None:
    fdbd = FDBD().fit(of(rows(100), *classifier()), labels(100))
    state = fdbd.state()
    for name, wrong, message in (
        ("mean", state["mean"][1:], r"mean should be float64 of shape \(8,\)"),
        ("gaps", state["gaps"][1:], r"gaps should be float64 of shape \(4, 4\)"),
        ("gaps", -state["gaps"], r"gaps should hold finite numbers from 0\.0"),
        ("least_distance", torch.zeros(1).double(), "least_distance should hold finite"),
        ("weight", state["gaps"], "unknown names: weight"),
    ):
        with pytest.raises(ValueError, match=message):
            reloaded(fdbd, {name: wrong})
    with pytest.raises(ValueError, match="it has no tensor gaps"):
        reloaded(fdbd, without="gaps")
