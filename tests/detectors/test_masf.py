import numpy as np
import pytest
import torch
from scipy.stats import combine_pvalues, false_discovery_control

from goen.detectors import MaSF
from goen.errors import ArtifactError, UsageError
from goen.outputs import Outputs

LAYERS = ("early", "late")


def outputs(count: int, seed: int, shift: float = 0.0) -> tuple[Outputs, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=rng)
    features = {
        "early": torch.randn(count, 4, generator=rng) + labels[:, None] + shift,
        "late": torch.randn(count, 6, generator=rng) - 2 * labels[:, None] + shift,
    }
    return Outputs(torch.zeros(count, 3), features), labels


def slow(train: Outputs, labels: torch.Tensor, tested: Outputs) -> list[float]:
    """By the words of the docstring, with SciPy's Fisher and Benjamini-Hochberg for Simes."""

    def statistic(of: Outputs, row: int, rows: torch.Tensor) -> float:
        layers = []
        for name in LAYERS:
            reference = train.features[name][rows].numpy()
            p = []
            for d, x in enumerate(of.features[name][row].numpy()):
                ends = (reference[:, d] <= x).sum(), (reference[:, d] >= x).sum()
                p.append(min(1.0, 2 * (1 + min(ends)) / (len(reference) + 1)))
            layers.append(false_discovery_control(p, method="bh").min())
        return float(combine_pvalues(layers, method="fisher").statistic)

    scores = []
    for row in range(len(tested)):
        p = []
        for c in range(3):
            rows = (labels == c).nonzero()[:, 0]
            null = np.array([statistic(train, int(i), rows) for i in rows])
            mine = statistic(tested, row, rows)
            # As close as rounding: the two add in another order.
            p.append((1 + (null >= mine - 1e-8).sum()) / (len(null) + 1))
        scores.append(-np.log(max(p)))
    return scores


def test_it_is_the_slow_loop() -> None:
    train, labels = outputs(60, 0)
    tested = Outputs.concatenate([outputs(12, 1)[0], outputs(12, 2, shift=3.0)[0]])
    found = MaSF(feature=LAYERS).fit(train, labels).score(tested)
    assert found.tolist() == pytest.approx(slow(train, labels, tested), rel=1e-9)


def test_by_hand() -> None:
    train = Outputs(torch.zeros(9, 1), {"z": torch.arange(9.0)[:, None]})
    detector = MaSF().fit(train, torch.zeros(9, dtype=torch.int64))
    tested = Outputs(torch.zeros(3, 1), {"z": torch.tensor([[4.0], [0.0], [99.0]])})
    # p-values of the channel: 1, 2 · 2/10 and 2 · 1/10. Of the statistic, with 0 and 8 as far out
    # as 0: 10 of 10, 3 of 10 and 1 of 10.
    assert detector.score(tested).tolist() == pytest.approx([0, -np.log(0.3), np.log(10)])


def test_a_class_without_training_images_is_left_out() -> None:
    train, labels = outputs(60, 0)
    kept = labels != 1
    tested, _ = outputs(20, 1)
    some = MaSF(feature=LAYERS).fit(train[kept.nonzero()[:, 0]], labels[kept])
    assert torch.isfinite(some.score(tested)).all()
    one = outputs(30, 3)[0]
    alone = MaSF(feature=LAYERS).fit(one, torch.ones(30, dtype=torch.int64))
    assert (alone.score(one).exp() <= 31).all()


def test_a_state_that_cannot_be_is_refused() -> None:
    train, labels = outputs(30, 0)
    detector = MaSF(feature=LAYERS).fit(train, labels)
    state = detector.state()
    again = MaSF(feature=LAYERS).load_state(state)
    assert torch.equal(again.score(train), detector.score(train))
    for name, wrong in {
        "class_counts": state["class_counts"] * 2,
        "layer.0": state["layer.0"][1:],
        "fisher": state["fisher"] * torch.nan,
        "layer.5": state["layer.0"],
    }.items():
        with pytest.raises(ArtifactError, match="not the state of a fitted MaSF"):
            MaSF(feature=LAYERS).load_state({**state, name: wrong})
    with pytest.raises(ArtifactError, match="no layer"):
        MaSF().load_state({name: state[name] for name in ("class_counts", "fisher")})
    with pytest.raises(UsageError, match="at least one"):
        MaSF(feature=())
