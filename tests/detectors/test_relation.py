import numpy as np
import pytest
import torch
from scipy.special import softmax

from goen.detectors import Relation
from goen.errors import UsageError
from goen.outputs import Outputs
from tests.detectors.linear import labels, some


@pytest.mark.parametrize(("power", "threshold"), [(1.0, 0.03), (3.0, 0.2)])
def test_it_is_the_mean_of_the_relations_that_count(power: float, threshold: float) -> None:
    train, other = some(60), some(30, 1)
    relation = Relation(power=power, threshold=threshold).fit(train, labels(60))
    p_train, p_other = (softmax(o.logits.numpy(), axis=1) for o in (train, other))
    expected = []
    for row, p in zip(other.features["z"].numpy(), p_other, strict=True):
        total = 0.0
        for x, q in zip(train.features["z"].numpy(), p_train, strict=True):
            lengths = np.linalg.norm(row) * np.linalg.norm(x)
            r = max(0.0, row @ x / lengths if lengths else 0.0) * (p @ q)
            total += r**power if r > threshold else 0.0
        expected.append(-total / 60)
    assert np.allclose(relation.score(other).numpy(), expected, rtol=1e-5, atol=1e-9)


def test_by_hand() -> None:
    # Cosines 0.6, 0.8 and -0.6, products of equal predictions 1/2: (0.3 + 0.4 + 0) / 3.
    train = Outputs(torch.zeros(3, 2), {"z": torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])})
    query = Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 4.0]])})
    scores = [
        Relation(threshold=t).fit(train, torch.tensor([0, 1, 0])).score(query).item()
        for t in (0.0, 0.35)
    ]
    assert scores == pytest.approx([-0.7 / 3, -0.4 / 3])


def test_the_sample_has_rows_of_every_class() -> None:
    relation = Relation(rows=9).fit(some(300), labels(300))
    assert relation.bank_.shape == (9, 8)
    assert relation.probabilities_.shape == (9, 3)


def test_what_is_out_of_range_is_refused() -> None:
    for wrong in ({"power": 0}, {"threshold": 1}, {"rows": 0}):
        with pytest.raises(UsageError, match=f"{next(iter(wrong))} must be"):
            Relation(**wrong)


def test_a_bank_of_another_size_than_its_probabilities_is_refused() -> None:
    relation = Relation().fit(some(60), labels(60))
    state = relation.state()
    Relation().load_state(state, relation.widths_ or {}, 3)
    state["bank"] = state["bank"][:59]
    with pytest.raises(ValueError, match=r"probabilities should be float32 of shape \(59, 3\)"):
        Relation().load_state(state, relation.widths_ or {}, 3)
