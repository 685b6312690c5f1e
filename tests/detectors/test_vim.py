from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logit, softmax
from sklearn.covariance import EmpiricalCovariance
from torch import Tensor

from goen.detectors import ViM
from goen.errors import FitError, UsageError
from goen.outputs import LinearClassifier, Outputs
from tests.detectors.saving import reloaded


def classifier(classes: int = 3, dim: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    return weight, torch.randn(classes, generator=generator, dtype=torch.float64)


def of(z: Tensor, weight: Tensor, bias: Tensor) -> Outputs:
    classifier = LinearClassifier(weight, bias, "z")
    return Outputs(z @ weight.T + bias, {"z": z}, classifier=classifier)


def rows(count: int, dim: int = 10, seed: int = 0) -> Tensor:
    spread = torch.logspace(1, -1, dim, dtype=torch.float64)
    noise = torch.randn(count, dim, dtype=torch.float64, generator=torch.manual_seed(seed))
    return 0.5 + spread * noise


def labels(count: int) -> Tensor:
    return torch.arange(count) % 3


@pytest.mark.parametrize("dim", [None, 0, 3, 9])
def test_it_is_the_papers_probability(dim: int | None) -> None:
    weight, bias = classifier()
    fit, other = of(rows(200), weight, bias), of(rows(50, seed=1), weight, bias)
    score = ViM(dim=dim).fit(fit, labels(200)).score(other).numpy()
    origin = -np.linalg.pinv(weight.numpy()) @ bias.numpy()
    x, q = fit.features["z"].numpy() - origin, other.features["z"].numpy() - origin
    values, vectors = np.linalg.eigh(EmpiricalCovariance(assume_centered=True).fit(x).covariance_)
    rest = vectors[:, np.argsort(-values)[5 if dim is None else dim :]]
    alpha = fit.logits.amax(1).numpy().mean() / np.linalg.norm(x @ rest, axis=1).mean()
    virtual = alpha * np.linalg.norm(q @ rest, axis=1)
    p = softmax(np.column_stack([virtual, other.logits.numpy()]), axis=1)[:, 0]
    sure = np.minimum(p, 1 - p) > 1e-9
    assert sure.sum() > 10
    assert np.allclose(score[sure], logit(p[sure]), rtol=1e-5)


def test_by_hand() -> None:
    # The second coordinate is the residual, 1 on average; the largest logit is 4 + log 2.
    weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    bias = torch.full((2,), np.log(2))
    z = torch.tensor([[4.0, 1.0], [-4.0, 1.0], [4.0, -1.0], [-4.0, -1.0]])
    vim = ViM(dim=1).fit(of(z, weight, bias), labels(4) % 2)
    score = vim.score(of(torch.tensor([[0.0, 0.0], [0.0, 3.0]]), weight, bias))
    expected = [-np.log(4), 3 * (4 + np.log(2)) - np.log(4)]
    assert np.allclose(score.numpy(), expected, rtol=1e-6)


def test_the_origin_is_where_all_logits_are_zero() -> None:
    weight, bias = classifier()
    vim = ViM().fit(of(rows(50), weight, bias), labels(50))
    assert torch.allclose(weight @ vim.state()["origin"] + bias, torch.zeros(3).double())


def test_what_leaves_the_subspace_scores_higher() -> None:
    weight, bias = classifier()
    vim = ViM().fit(of(rows(300), weight, bias), labels(300))
    inside = rows(100, seed=2)
    aside = inside.clone()
    out_of_plane = vim.state()["residual"][:, 0]
    aside += 5 * out_of_plane
    same_logits = of(inside, weight, bias).logits
    far = vim.score(Outputs(same_logits, {"z": aside}))
    assert (far > vim.score(Outputs(same_logits, {"z": inside}))).all()


def test_features_that_fill_no_residual_are_refused() -> None:
    weight, bias = classifier()
    flat = rows(100)
    origin = -torch.linalg.pinv(weight) @ bias
    flat = torch.cat([flat[:, :4], origin[4:].expand(100, 6)], dim=1)
    with pytest.raises(FitError, match="100 training rows lie within 5 of 10 dimensions"):
        ViM().fit(of(flat, weight, bias), labels(100))
    ViM(dim=3).fit(of(flat, weight, bias), labels(100))


def test_logits_below_zero_are_refused() -> None:
    weight, bias = classifier()
    with pytest.raises(FitError, match="needs it above 0"):
        ViM().fit(of(rows(100), weight, bias - 1000), labels(100))
    with pytest.raises(FitError, match="is 0 on average"):
        ViM().fit(of(rows(100), 0 * weight, 0 * bias), labels(100))


def test_what_is_not_finite_is_named() -> None:
    weight, bias = classifier()
    for where in ("feature", "logit"):
        broken = of(rows(50), weight, bias)
        (broken.logits if where == "logit" else broken.features["z"])[3] = torch.nan
        with pytest.raises(FitError, match=f"1 of 50 {where} rows hold NaN"):
            ViM().fit(broken, labels(50))


def test_what_does_not_belong_together_is_refused() -> None:
    weight, bias = classifier()
    for dim in (-1, 2.5, "2"):
        with pytest.raises(UsageError, match="dim must be an integer, at least 0; got"):
            ViM(dim=dim)  # type: ignore[arg-type]
    fit = of(rows(100), weight, bias)
    with pytest.raises(UsageError, match=r"dim lies in 0 .. 9"):
        ViM(dim=10).fit(fit, labels(100))
    vim = ViM()
    with pytest.raises(UsageError, match="have no linear classifier"):
        vim.fit(Outputs(fit.logits, fit.features), labels(100))
    with pytest.raises(UsageError, match="classifier does not reproduce the logits: with feature"):
        vim.fit(replace(fit, logits=fit.logits + 1), labels(100))
    vim.fit(fit, labels(100))
    with pytest.raises(UsageError, match="3 classes, got 4"):
        vim.score(Outputs(torch.zeros(4, 4), {"z": torch.zeros(4, 10)}))


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (1, 3), (50, 1000)])
def test_few_rows_and_many_classes(count: int, classes: int) -> None:
    weight, bias = classifier(classes)
    fit = of(rows(count), weight, bias + 100)
    vim = ViM(dim=0)
    vim.fit(fit, torch.zeros(count, dtype=torch.int64))
    assert torch.isfinite(vim.score(fit)).all()


def test_the_state_is_all_there_is() -> None:
    weight, bias = classifier()
    vim = ViM().fit(of(rows(100), weight, bias), labels(100))
    other = of(rows(9, seed=4), weight, bias)
    assert torch.equal(reloaded(vim).score(other), vim.score(other))
    assert torch.equal(reloaded(vim).score(Outputs(other.logits, other.features)), vim.score(other))


def test_a_forged_state_is_refused() -> None:
    vim = ViM().fit(of(rows(100), *classifier()), labels(100))
    state = vim.state()
    for name, wrong, message in (
        ("origin", state["origin"][1:], r"origin should be float64 of shape \(10,\)"),
        ("origin", state["origin"] * torch.nan, "origin should hold finite"),
        ("residual", state["residual"][1:], r"residual should be float64 of shape \(10, direc"),
        ("residual", state["residual"] * 100, "residual should hold finite numbers from -1"),
        ("alpha", -state["alpha"], r"alpha should hold finite numbers from 0\.0"),
        ("weight", state["residual"], "unknown names: weight"),
    ):
        with pytest.raises(ValueError, match=message):
            reloaded(vim, {name: wrong})
    with pytest.raises(ValueError, match="it has no tensor alpha"):
        reloaded(vim, without="alpha")
