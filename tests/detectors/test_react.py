from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import Tensor

from goen.detectors import Energy, ReAct
from goen.errors import FitError, NotFittedError, UsageError
from goen.outputs import LinearClassifier, Outputs
from tests.detectors.saving import reloaded


def classifier(classes: int = 3, dim: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    return weight, torch.randn(classes, generator=generator, dtype=torch.float64)


def of(z: Tensor, weight: Tensor, bias: Tensor) -> Outputs:
    classifier = LinearClassifier(weight, bias, "z")
    return Outputs(z @ weight.T + bias, {"z": z}, classifier=classifier)


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 8, dtype=torch.float64, generator=torch.manual_seed(seed)).relu()


def labels(count: int) -> Tensor:
    return torch.arange(count) % 3


@pytest.mark.parametrize("percentile", [50, 90, 99.5, 100])
def test_it_is_the_energy_of_clipped_features(percentile: float) -> None:
    weight, bias = classifier()
    fit, other = of(rows(101), weight, bias), of(3 * rows(50, 1), weight, bias)
    react = ReAct(percentile=percentile).fit(fit, labels(101))
    threshold = np.percentile(fit.features["z"].numpy(), percentile)
    clipped = np.minimum(other.features["z"].numpy(), threshold)
    expected = -logsumexp(clipped @ weight.numpy().T + bias.numpy(), axis=1)
    assert np.allclose(react.score(other).numpy(), expected, rtol=1e-10)


def test_by_hand() -> None:
    # Activations 0 to 10, so the 90th percentile is 9: (12, 1) is seen as (9, 1).
    weight, bias = torch.tensor([[1.0, 0.0]]), torch.tensor([0.5])
    z = torch.arange(11.0).repeat(2).view(11, 2)
    react = ReAct().fit(of(z, weight, bias), torch.zeros(11).long())
    assert react.threshold_ == 9
    assert react.score(of(torch.tensor([[12.0, 1.0], [2.0, 50.0]]), weight, bias)).tolist() == [
        -9.5,
        -2.5,
    ]


def test_clipping_nothing_it_is_the_energy() -> None:
    weight, bias = classifier()
    fit = of(rows(60), weight, bias)
    react = ReAct(percentile=100).fit(fit, labels(60))
    assert torch.allclose(react.score(fit), Energy().score(fit))


def test_more_activations_than_torch_can_take_a_quantile_of() -> None:
    weight, bias = classifier(2, 1024)
    z = torch.rand(2**14 + 1, 1024, generator=torch.manual_seed(0))
    weight, bias = weight.float(), bias.float()
    fit = of(z, weight, bias)
    react = ReAct().fit(fit, torch.zeros(len(z)).long())
    assert react.threshold_.item() == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_narrow_features_are_measured_as_wide_ones(dtype: torch.dtype) -> None:
    weight, bias = classifier()
    fit = of(rows(200), weight, bias)
    narrow = replace(fit, features={"z": fit.features["z"].to(dtype)})
    wide = replace(fit, features={"z": narrow.features["z"].double()})
    react = ReAct()
    expected = react.fit(wide, labels(200)).score(wide)
    assert torch.allclose(react.fit(narrow, labels(200)).score(narrow), expected, rtol=1e-5)


def test_constant_features_are_measured() -> None:
    weight, bias = classifier()
    fit = of(torch.ones(4, 8).double(), weight, bias)
    react = ReAct().fit(fit, labels(4))
    assert torch.allclose(react.score(fit), Energy().score(fit))


def test_what_cannot_be_meant_is_refused() -> None:
    weight, bias = classifier()
    for percentile in (0, 101, np.nan):
        with pytest.raises(UsageError, match=r"percentile must be .*, above 0 and at most 100"):
            ReAct(percentile=percentile)
    react = ReAct()
    with pytest.raises(UsageError, match="have no linear classifier"):
        react.fit(Outputs(torch.zeros(4, 3), {"z": torch.zeros(4, 8)}), labels(4))
    other = replace(of(rows(20), weight, bias), features={"z": rows(20) / 9})
    with pytest.raises(UsageError, match="classifier does not reproduce the logits: with feat"):
        react.fit(other, labels(20))
    with pytest.raises(NotFittedError):
        react.score(of(rows(2), weight, bias))
    broken = rows(20)
    broken[3, 3] = torch.inf
    with pytest.raises(FitError, match="1 of 20"):
        react.fit(of(broken, weight, bias), labels(20))


def test_the_state_is_all_there_is() -> None:
    weight, bias = classifier()
    react = ReAct().fit(of(rows(100), weight, bias), labels(100))
    other = of(rows(9, 4), weight, bias)
    assert torch.equal(reloaded(react).score(other), react.score(other))
    assert torch.equal(
        reloaded(react).score(Outputs(other.logits, other.features)), react.score(other)
    )


def test_a_forged_state_is_refused() -> None:
    react = ReAct().fit(of(rows(100), *classifier()), labels(100))
    state = react.state()
    for name, wrong, message in (
        ("threshold", state["threshold"][None], r"threshold should be float64 of shape \(\)"),
        ("threshold", state["threshold"] * torch.inf, "threshold should hold finite"),
        ("weight", state["weight"].T, r"weight should be float64 of shape \(3, 8\)"),
        ("bias", state["bias"].float(), "bias should be float64"),
        ("more", state["bias"], "unknown names: more"),
    ):
        with pytest.raises(ValueError, match=message):
            reloaded(react, {name: wrong})
    with pytest.raises(ValueError, match="it has no tensor bias"):
        reloaded(react, without="bias")
