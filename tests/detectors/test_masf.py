import numpy as np
import pytest
import torch
from scipy.stats import combine_pvalues, false_discovery_control

from goen.detectors import MaSF
from goen.errors import FitError, UsageError
from goen.outputs import Outputs
from tests.detectors.saving import reloaded

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
    train = Outputs(torch.zeros(19, 1), {"z": torch.arange(19.0)[:, None]})
    detector = MaSF().fit(train, torch.zeros(19, dtype=torch.int64))
    tested = Outputs(torch.zeros(3, 1), {"z": torch.tensor([[9.0], [0.0], [99.0]])})
    # p-values of the channel: 1, 2 · 2/20 and 2 · 1/20. Of the statistic, with 0 and 18 as far out
    # as 0: 20 of 20, 3 of 20 and 1 of 20.
    assert detector.score(tested).tolist() == pytest.approx([0, -np.log(0.15), np.log(20)])


def test_ten_training_images_of_a_class_are_enough() -> None:
    train, labels = outputs(90, 0)
    of_one = (labels == 1).nonzero()[:, 0]
    for kept in (of_one[:10], torch.cat([(labels != 1).nonzero()[:, 0], of_one[:10]])):
        detector = MaSF(feature=LAYERS).fit(train[kept], labels[kept])
        far, _ = outputs(5, 1, shift=50.0)
        assert detector.score(far).tolist() == pytest.approx([np.log(11)] * 5)
        assert torch.equal(reloaded(detector).score(far), detector.score(far))


@pytest.mark.parametrize("few", [0, 1, 9])
def test_a_class_with_few_training_images_is_left_out(few: int) -> None:
    train, labels = outputs(90, 0)
    of_one = (labels == 1).nonzero()[:, 0]
    kept = torch.cat([(labels != 1).nonzero()[:, 0], of_one[:few]])
    detector = MaSF(feature=LAYERS).fit(train[kept], labels[kept])
    smallest = min(int((labels == c).sum()) for c in (0, 2))
    far, _ = outputs(20, 1, shift=50.0)
    assert detector.score(far).tolist() == pytest.approx([np.log(smallest + 1)] * 20)


def test_with_nothing_but_few_images_there_is_no_fit() -> None:
    train, labels = outputs(12, 0)
    with pytest.raises(FitError, match="at least 10 training images"):
        MaSF(feature=LAYERS).fit(train, labels)


def test_other_features_than_the_fitted_ones_are_named() -> None:
    train, labels = outputs(60, 0)
    detector = MaSF(feature=LAYERS).fit(train, labels)
    wider = Outputs(torch.zeros(1, 3), {"early": torch.zeros(1, 5), "late": torch.zeros(1, 6)})
    with pytest.raises(UsageError, match="width 4, got 5"):
        detector.score(wider)


def test_a_state_that_cannot_be_is_refused() -> None:
    train, labels = outputs(60, 0)
    detector = MaSF(feature=LAYERS).fit(train, labels)
    state = detector.state()
    assert torch.equal(reloaded(detector).score(train), detector.score(train))
    for name, wrong in {
        "class_counts": state["class_counts"] * 2,
        "layer.0": state["layer.0"][1:],
        "layer.1": state["layer.0"],
        "fisher": state["fisher"] * torch.nan,
        "layer.2": state["layer.0"],
    }.items():
        with pytest.raises(ValueError, match=r"its tensor (layer\.|fisher)|unknown names: layer.2"):
            reloaded(detector, {name: wrong})
    with pytest.raises(ValueError, match=r"it has no tensor layer\.0"):
        reloaded(detector, without="layer.0")
    few = {
        "class_counts": torch.tensor([1, 0, 0]),
        "fisher": state["fisher"][:1],
        "layer.0": state["layer.0"][:1],
        "layer.1": state["layer.1"][:1],
    }
    with pytest.raises(ValueError, match="class_counts should have a class of at least 10"):
        reloaded(detector, few)
    with pytest.raises(UsageError, match="at least one"):
        MaSF(feature=())


def test_layers_in_a_list_are_saved_and_loaded() -> None:
    train, labels = outputs(60, 0)
    detector = MaSF(feature=list(LAYERS)).fit(train, labels)
    assert torch.equal(
        reloaded(detector).score(train), MaSF(feature=LAYERS).fit(train, labels).score(train)
    )
