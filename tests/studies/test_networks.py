"""Networks that are trained once, and those that were trained elsewhere."""

from pathlib import Path

import pytest
import torch

from goen.io.stages import Stages
from goen.models import new_network
from goen.models.seeding import seeded
from goen.studies import networks
from tests.tiny import TINY, tiny_protocol

CPU = torch.device("cpu")


def test_a_network_that_was_trained_elsewhere_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = tiny_protocol()
    sets = (p.train, p.calibration_id, Stages(tmp_path))
    with seeded(7):
        weights = new_network(TINY.network).state_dict()
    networks.adopt(TINY.network, TINY.training, *sets, weights, [{"epoch": 0}])

    def train(*_: object, **__: object) -> None:
        raise AssertionError("it is trained again")

    monkeypatch.setattr(networks, "train_backbone", train)
    found = networks.train(TINY.network, TINY.training, *sets, CPU)
    assert found.epochs == [{"epoch": 0}]
    assert not found.network.training
    for name, tensor in found.network.state_dict().items():
        assert torch.equal(tensor, weights[name])
