import torch

from goen.detectors import MaxLogit
from goen.outputs import Outputs


def test_by_hand() -> None:
    logits = torch.tensor([[1.0, -7.0, 3.5], [-2.0, -1.0, -4.0]])
    assert MaxLogit().score(Outputs(logits, {})).tolist() == [-3.5, 1.0]
    assert MaxLogit().score(Outputs(logits.half(), {})).tolist() == [-3.5, 1.0]


def test_one_class_has_a_largest_logit() -> None:
    assert MaxLogit().score(Outputs(torch.tensor([[2.0]]), {})).tolist() == [-2.0]
