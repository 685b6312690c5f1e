import numpy as np
import pytest
import torch
from scipy.special import softmax

from goen.errors import UsageError
from goen.models.ensemble import ensemble
from goen.outputs import Outputs


def members(count: int = 5, images: int = 12, scale: float = 3.0) -> list[Outputs]:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(count, images, 4)) * scale).float()
    return [Outputs(said, {"z": torch.zeros(images, 2)}) for said in logits]


def test_it_is_the_mean_and_the_summed_variance() -> None:
    said = members()
    p = np.stack([softmax(m.logits.double().numpy(), axis=1) for m in said])
    both = ensemble(said)
    assert np.allclose(torch.softmax(both.logits.double(), 1), p.mean(0), atol=1e-6)
    assert np.allclose(both.uncertainty, p.var(0).sum(1), rtol=1e-12)
    assert both.logits.dtype == torch.float32
    assert not both.features


def test_by_hand() -> None:
    # (0.8, 0.2) and (0.4, 0.6): mean (0.6, 0.4), variance 0.04 for each class.
    a, b = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.4, 0.6]]).log() + 7
    both = ensemble([Outputs(a, {}), Outputs(b, {})])
    assert torch.allclose(both.logits.exp(), torch.tensor([[0.6, 0.4]]))
    assert both.uncertainty is not None
    assert both.uncertainty.item() == pytest.approx(0.08, abs=1e-7)


def test_members_that_are_one_network_do_not_disagree() -> None:
    one = members(1)[0]
    three = ensemble([one, one, one])
    assert torch.allclose(three.logits, torch.log_softmax(one.logits, 1), atol=1e-6)
    assert three.uncertainty is not None
    assert three.uncertainty.max() < 1e-30


def test_sure_members_stay_finite_and_untied() -> None:
    # Probabilities of 1e-300 and less: their mean is still told apart.
    a, b = torch.tensor([[0.0, -700.0], [0.0, -2000.0]]), torch.tensor([[0.0, -690.0], [0.0, -900]])
    logits = ensemble([Outputs(a, {}), Outputs(b, {})]).logits
    expected = torch.tensor([-690 - np.log(2), -900 - np.log(2)]).float()
    assert torch.allclose(logits[:, 1], expected)


def test_order_and_batches_do_not_matter() -> None:
    said = members()
    whole = ensemble(said)
    backwards = ensemble(said[::-1])
    assert torch.allclose(whole.logits, backwards.logits)
    parts = [ensemble([m[rows] for m in said]) for rows in (slice(0, 5), slice(5, 12))]
    joined = Outputs.concatenate(parts)
    assert torch.equal(joined.logits, whole.logits)
    assert torch.equal(joined.uncertainty, whole.uncertainty)


def test_members_of_other_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="no members"):
        ensemble([])
    with pytest.raises(UsageError, match=r"\(4, 3\), \(5, 3\)"):
        ensemble([Outputs(torch.zeros(5, 3), {}), Outputs(torch.zeros(4, 3), {})])
