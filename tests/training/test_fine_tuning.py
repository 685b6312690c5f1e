"""Fine-tuning: what is trained, that it helps, and that it never keeps what is worse."""

import numpy as np
import pytest
import torch
from torch import nn

import goen
from goen.errors import FitError, LeakError, UsageError
from goen.models.seeding import seeded
from goen.training.fine_tuning import FineTuning, _trained_weights, fine_tune
from goen.training.probe import fit_probe
from tests.training.test_probe import images, small_net


def probed(train: goen.data.ImageSet, validation: goen.data.ImageSet) -> goen.FeatureExtractor:
    """With a probe whose weights are too small."""
    network = fit_probe(small_net(), train, validation).network
    with torch.no_grad():
        network.model[6].weight *= 0.8  # type: ignore[index, union-attr]
    return network


@pytest.mark.parametrize("part", ["last", "all"])
def test_the_validation_loss_falls_and_the_rest_stays(part: str) -> None:
    train, validation = images(90, 1), images(60, 2)
    before = probed(train, validation)
    kept = {name: value.clone() for name, value in before.state_dict().items()}
    config = FineTuning(part=part, epochs=3, learning_rate=3e-3, batch_size=16)  # type: ignore[arg-type]
    after, losses = fine_tune(before, train, validation, config)
    assert len(losses) == 4
    assert min(losses) < losses[0]
    assert all(torch.equal(before.state_dict()[name], kept[name]) for name in kept)
    moved = {n for n, value in after.state_dict().items() if not torch.equal(value, kept[n])}
    every = {*kept} if part == "all" else {"model.6.weight", "model.6.bias"}
    assert moved == every
    outputs = goen.extract(after, validation)
    loss = nn.functional.cross_entropy(outputs.logits.double(), outputs.labels)
    assert float(loss) == pytest.approx(min(losses), rel=1e-6)
    assert not any(weight.requires_grad for weight in after.parameters())


def test_the_same_seed_gives_the_same_weights() -> None:
    train, validation = images(48, 1), images(30, 2)
    network = probed(train, validation)
    runs = [
        fine_tune(network, train, validation, FineTuning("all", 2, 3e-3, 16, seed=seed))[1]
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_what_is_worse_is_not_kept() -> None:
    train, validation = images(48, 1), images(30, 2)
    wrong = goen.data.ImageSet("wrong", train.pixels, (train.labels + 1) % 3, train.classes)
    network = probed(train, validation)
    after, losses = fine_tune(network, wrong, validation, FineTuning("all", 2, 1e-2, 16))
    assert losses[0] == min(losses)
    for name, value in network.state_dict().items():
        assert torch.equal(after.state_dict()[name], value)


def test_the_last_quarter_of_the_matrices_is_trained() -> None:
    with seeded(0):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    assert [*_trained_weights(model, "last")] == ["6.weight", "6.bias", "7.weight", "7.bias"]
    assert [*_trained_weights(model, "all")] == [name for name, _ in model.named_parameters()]


def test_invalid_arguments_are_refused() -> None:
    train, validation = images(48, 1), images(30, 2)
    network = probed(train, validation)
    with pytest.raises(LeakError):
        fine_tune(network, train, train, FineTuning())
    with pytest.raises(FitError, match="no longer finite"):
        fine_tune(network, train, validation, FineTuning("all", 3, 1e30, 16))
    with pytest.raises(UsageError, match="part"):
        FineTuning(part="first")  # type: ignore[arg-type]
    assert np.isfinite(network(torch.from_numpy(train.read(slice(2)))).logits.numpy()).all()
