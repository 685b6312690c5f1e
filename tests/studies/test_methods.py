"""What a method may be fitted on, and what goen-m measures."""

from typing import Any, get_args

import pytest
import torch

from goen.detectors import Energy
from goen.detectors.calibration_head import HeadConfig
from goen.errors import UsageError
from goen.models import NetworkConfig, ResNet18
from goen.models.fast_cnn import FastCNN
from goen.outputs import Outputs
from goen.studies import METHODS, FitData, Method
from goen.studies.experiment import AS_PRESET, NETWORKS
from goen.studies.methods import Labelled, Network, goen_m_for

FAST_CNN = NetworkConfig(width=2, architecture="fast_cnn")


def test_a_method_may_read_only_what_it_declares() -> None:
    train = Labelled(Outputs(torch.zeros(2, 3), {}), torch.zeros(2, dtype=torch.int64))
    network = ResNet18(NetworkConfig(num_classes=3, width=2))
    data = FitData(network, HeadConfig(), {"train": train, "ood:noise": train})
    assert data["train"] is train
    assert data.ood == {"noise": train.outputs}
    with pytest.raises(UsageError, match="fitted on 'calibration' but declares train, ood:noise"):
        data["calibration"]
    with pytest.raises(UsageError, match=r"several OOD sets \(noise\): use data\.ood"):
        data["ood"]
    with pytest.raises(UsageError, match="fitted on 'ood' but declares train in its fits_on"):
        FitData(network, HeadConfig(), {"train": train})["ood"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"network": "resnet"}, r"Unknown network 'resnet'\..* Known: dropout, .*, standard"),
        ({"fits_on": "train"}, r"fits_on is a tuple of roles, such as \('train',\), got 'train'"),
        ({"fits_on": ("train", "test")}, "Unknown role in fits_on 'test'"),
        (
            {"forward_mode": "flipped"},
            r"Unknown forward mode 'flipped'\. Did you mean 'flip_averaged'",
        ),
        ({"section": "posthoc"}, "Unknown section 'posthoc'. Did you mean 'post-hoc'"),
    ],
    ids=str,
)
def test_a_method_declares_what_there_is(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Method("own", "Own", lambda data: Energy(), **wrong)


def test_every_network_can_be_declared() -> None:
    assert {*NETWORKS, AS_PRESET, "ensemble", "given"} == {*get_args(Network)}


def test_titles_and_keys_are_unique() -> None:
    assert len({method.title for method in METHODS.values()}) == len(METHODS)
    assert all(key == method.key for key, method in METHODS.items())


def test_goen_m_measures_what_was_selected_for_a_network() -> None:
    resnet, fast_cnn = ResNet18(NetworkConfig(width=2)), FastCNN(FAST_CNN)
    assert goen_m_for(resnet).layers == ("layer2", "layer4")
    assert goen_m_for(resnet).logit_cues == ("entropy",)
    fast = goen_m_for(fast_cnn, rows=100)
    assert (fast.layers, fast.rows) == (("block2", "block3.conv1"), 100)
    assert fast.logit_cues == ("entropy", "energy")
    assert {*fast.layers} < {scale.name for scale in fast_cnn.scales}
