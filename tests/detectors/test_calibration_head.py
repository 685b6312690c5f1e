from dataclasses import replace

import numpy as np
import pytest
import torch

from goen.detectors import calibration_head
from goen.detectors.calibration_head import (
    CalibrationHead,
    HeadConfig,
    HeadEpoch,
    load_head,
    probability_of_ood,
    train_head,
)
from goen.errors import FitError, UsageError
from goen.io.limits import HEAD_WEIGHT


def cloud(centre: float, count: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(centre, 0.5, (count, 3)))


def test_ood_cues_score_higher_and_meet_their_targets() -> None:
    head, epochs = train_head(
        cloud(0, 2000), {"near": cloud(4, 500, 1), "far": cloud(8, 50, 2)}, HeadConfig(patience=20)
    )
    with torch.no_grad():
        low = torch.sigmoid(head(cloud(0, 300, 3).float()))
        high = torch.sigmoid(head(cloud(4, 300, 4).float()))
    assert abs(low.mean() - 0.05) < 0.03
    assert abs(high.mean() - 0.95) < 0.06
    assert max(epoch.gap for epoch in epochs) > 0.85


def test_each_epoch_has_the_head_as_it_was_and_its_mean_scores() -> None:
    id_cues, ood_cues = cloud(0, 300), {"near": cloud(2, 100, 1), "far": cloud(4, 60, 2)}
    config = HeadConfig(epochs=4, batch_size=32)
    head, epochs = train_head(id_cues, ood_cues, config)
    for number, epoch in enumerate(epochs, start=1):
        # A training that ends there ends with the same head, the last being the best so far.
        _, shorter = train_head(id_cues, ood_cues, HeadConfig(epochs=number, batch_size=32))
        ours, theirs = epoch.head.state_dict(), shorter[-1].head.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert not epoch.head.training
    rng = np.random.default_rng(config.seed)
    measured = []
    for cues in (id_cues, *ood_cues.values()):
        held_out = rng.permutation(len(cues))[: len(cues) // 5]
        u = torch.sigmoid(epochs[-1].head(cues[held_out].float()))
        measured.append(u.mean().item())
    assert epochs[-1].id_score == pytest.approx(measured[0])
    assert epochs[-1].ood_score == pytest.approx((measured[1] + measured[2]) / 2)
    assert epochs[-1].gap == epochs[-1].ood_score - epochs[-1].id_score
    best = max(epochs, key=lambda epoch: epoch.gap).head.state_dict()
    assert all(torch.equal(values, best[name]) for name, values in head.state_dict().items())


def test_every_set_has_the_same_weight_whatever_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {1.0: 0, 2.0: 0}

    class Counting(CalibrationHead):
        def forward(self, cues: torch.Tensor) -> torch.Tensor:
            if self.training and torch.is_grad_enabled():
                for mark in seen:
                    seen[mark] += int((cues[:, 0] == mark).sum())
            return super().forward(cues)

    monkeypatch.setattr(calibration_head, "CalibrationHead", Counting)
    small, large = torch.full((10, 3), 1.0), torch.full((4000, 3), 2.0)
    train_head(cloud(0, 1000), {"small": small, "large": large}, HeadConfig(epochs=2))
    assert seen[1.0] == seen[2.0]
    assert seen[1.0] + seen[2.0] == 2 * 800


def test_it_stops_when_the_gap_no_longer_grows_and_keeps_the_widest() -> None:
    # ID and OOD are alike: the gap is noise, so patience ends it early.
    config = HeadConfig(epochs=200, patience=3)
    head, epochs = train_head(cloud(0, 300), {"same": cloud(0, 300, 1)}, config)
    gaps = [epoch.gap for epoch in epochs]
    assert len(gaps) < 200
    assert len(gaps) - 1 - gaps.index(max(gaps)) == 3
    assert not head.training


def test_the_first_epoch_is_kept_where_its_gap_is_the_widest() -> None:
    # ID and OOD are alike: with some seed the first gap is the widest of a few.
    for seed in range(100):
        config = HeadConfig(epochs=4, seed=seed)
        head, epochs = train_head(cloud(0, 60), {"same": cloud(0, 60, 1)}, config)
        gaps = [epoch.gap for epoch in epochs]
        if gaps[0] == max(gaps):
            break
    once, _ = train_head(cloud(0, 60), {"same": cloud(0, 60, 1)}, HeadConfig(epochs=1, seed=seed))
    kept, expected = head.state_dict(), once.state_dict()
    assert all(torch.equal(kept[name], expected[name]) for name in expected)


def test_it_is_the_same_every_time_and_leaves_the_callers_randomness() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    a, _ = train_head(cloud(0, 100), {"x": cloud(3, 100)}, HeadConfig(epochs=2))
    b, _ = train_head(cloud(0, 100), {"x": cloud(3, 100)}, HeadConfig(epochs=2))
    c, _ = train_head(cloud(0, 100), {"x": cloud(3, 100)}, HeadConfig(epochs=2, seed=1))
    probe = cloud(1, 5).float()
    assert torch.equal(a(probe), b(probe))
    assert not torch.equal(a(probe), c(probe))
    assert torch.equal(before, torch.random.get_rng_state())


def test_too_few_images_are_said() -> None:
    with pytest.raises(FitError, match="more than 1 noise: some to train on, and 20%"):
        train_head(cloud(0, 100), {"noise": cloud(3, 1)}, HeadConfig())


def test_cues_that_cannot_be_learnt_from_are_said() -> None:
    id_cues, ood_cues = torch.randn(20, 3), torch.randn(20, 3)
    with pytest.raises(UsageError, match="learns from OOD images"):
        train_head(id_cues, {}, HeadConfig())
    ood_cues[3, 1] = torch.nan
    with pytest.raises(FitError, match="Cues of noise are NaN"):
        train_head(id_cues, {"noise": ood_cues}, HeadConfig())


def test_a_head_whose_scores_are_not_finite_is_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    cues, ood = torch.zeros(50, 3), {"a": torch.ones(50, 3)}
    nan, measured = float("nan"), calibration_head._measured
    scores = iter([nan, 0.1, 0.2, nan])

    def measure(*given: object) -> HeadEpoch:
        return replace(measured(*given), id_score=0.0, ood_score=next(scores))  # type: ignore[arg-type]

    monkeypatch.setattr(calibration_head, "_measured", measure)
    head, epochs = train_head(cues, ood, HeadConfig(epochs=4))
    assert head is epochs[2].head
    scores = iter([nan, nan])
    with pytest.raises(FitError, match="not finite after any epoch"):
        train_head(cues, ood, HeadConfig(epochs=2))


def test_the_head_has_two_hidden_layers_of_64_and_32() -> None:
    shapes = [tuple(p.shape) for p in CalibrationHead().parameters()]
    assert shapes == [(64, 3), (64,), (32, 64), (32,), (1, 32), (1,)]


def test_the_compression_of_the_targets_is_undone() -> None:
    u = torch.tensor([0.01, 0.05, 0.275, 0.95, 0.99], dtype=torch.float64)
    expected = torch.tensor([0, 0, 0.25, 1, 1], dtype=torch.float64)
    assert torch.allclose(probability_of_ood(torch.logit(u)), expected)


def test_a_head_is_loaded_from_its_weights_alone() -> None:
    torch.manual_seed(3)
    head, cues = CalibrationHead(), torch.randn(5, 3)
    before = torch.random.get_rng_state()
    loaded = load_head(head.state_dict())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(loaded(cues), head(cues))
    assert not loaded.training
    for name, value, message in (
        (
            "layers.0.weight",
            torch.zeros(64, 4),
            r"layers.0.weight should be float32 of .*\(64, 3\)",
        ),
        ("layers.0.bias", torch.full((64,), 2e4), "from -10000.0 to 10000.0, got 20000.0"),
        ("layers.4.bias", torch.tensor([torch.nan]), "layers.4.bias should hold finite"),
        ("further", torch.zeros(1), "unknown names: further"),
    ):
        with pytest.raises(ValueError, match=message):
            load_head({**head.state_dict(), name: value})


def test_the_largest_weights_give_a_finite_logit() -> None:
    largest = {
        k: torch.full_like(v, HEAD_WEIGHT) for k, v in CalibrationHead().state_dict().items()
    }
    cues = torch.tensor([[710.0, 1.0, 14.0]])  # no image has larger ones
    assert torch.isfinite(load_head(largest)(cues)).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer, at least 1; got 0"),
        ({"batch_size": 0}, "batch_size must be an integer, at least 1; got 0"),
        ({"patience": 0}, "patience must be an integer, at least 1; got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a number, above 0"),
        ({"held_out": 0.0}, "held_out must be a number, above 0 and below 1"),
        ({"held_out": 1.0}, "held_out must be a number, above 0 and below 1"),
        ({"seed": -1}, "seed must be an integer, at least 0"),
    ],
)
def test_an_invalid_setting_is_an_error(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        HeadConfig(**wrong)  # type: ignore[arg-type]


def test_a_training_can_start_from_another_head() -> None:
    id_cues, ood = cloud(0, 400), {"ood": cloud(2, 400, 1)}
    first, _ = train_head(id_cues, ood, HeadConfig(epochs=3))
    before = {name: values.clone() for name, values in first.state_dict().items()}
    still, _ = train_head(id_cues, ood, HeadConfig(epochs=1, learning_rate=1e-12), start=first)
    for name, values in still.state_dict().items():
        assert torch.allclose(values, before[name], atol=1e-6)
    moved, epochs = train_head(id_cues, ood, HeadConfig(epochs=3), start=first)
    assert epochs[0].gap > train_head(id_cues, ood, HeadConfig(epochs=1))[1][0].gap
    assert any(not torch.equal(values, before[n]) for n, values in moved.state_dict().items())
    assert all(torch.equal(values, before[n]) for n, values in first.state_dict().items())
