import pytest
import torch

from goen.detectors import Uncertainty
from goen.errors import UsageError
from goen.outputs import Outputs


def test_it_is_what_the_network_says() -> None:
    uncertainty = torch.tensor([0.25, 0.0, 7.5])
    assert Uncertainty().score(Outputs(torch.zeros(3, 2), {}, uncertainty)).tolist() == [
        0.25,
        0.0,
        7.5,
    ]


def test_a_network_without_a_word_for_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no uncertainty of the network's own\. Take a network"):
        Uncertainty().score(Outputs(torch.zeros(3, 2), {}))


def test_there_is_one_per_image() -> None:
    with pytest.raises(UsageError, match=r"one score per image, .* \(3,\), got .* \(3, 1\)"):
        Uncertainty().score(Outputs(torch.zeros(3, 2), {}, torch.zeros(3, 1)))
