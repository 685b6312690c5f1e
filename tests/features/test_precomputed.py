"""Features that somebody already has, in place of a network."""

import pytest
import torch

from goen.errors import UsageError
from goen.features.precomputed import Precomputed


def test_logits_and_features_pass_as_they_are() -> None:
    network = Precomputed({"a": 2, "b": 3}, 4, has_logits=True)
    inputs = {"b": torch.rand(5, 3).half(), "a": torch.rand(5, 2), "logits": torch.rand(5, 4)}
    outputs = network(inputs)
    assert [*outputs.features] == ["a", "b"]
    assert torch.equal(outputs.logits, inputs["logits"])
    assert torch.equal(outputs.features["b"], inputs["b"].float())
    assert network.add(inputs, torch.zeros(5)) is network  # nothing to add
    assert not network.state_dict()


def test_means_by_hand() -> None:
    network = Precomputed({"a": 2}, 3, has_logits=False)
    network.add({"a": torch.tensor([[2.0, 0.0], [0.0, 5.0]])}, torch.tensor([0, 2]))
    network.add({"a": torch.tensor([[3.0, 4.0]])}, torch.tensor([2], dtype=torch.int32))
    # The means are (1, 0) and (0.3, 0.9); the squared distances in class 2 are 2 · 0.1.
    variance = 0.2 / (3 * 2)
    logits = network({"a": torch.tensor([[0.0, 1.0]])}).logits
    expected = torch.tensor([-0.5 / variance, -1e30, (0.9 - 0.45) / variance])
    assert torch.allclose(logits, expected[None], rtol=1e-5)


def test_chunks_add_up_to_the_same_bytes_in_any_order() -> None:
    inputs, labels = {"a": torch.randn(50, 4)}, torch.arange(50) % 3
    whole = Precomputed({"a": 4}, 3, has_logits=False).add(inputs, labels)
    parts = Precomputed({"a": 4}, 3, has_logits=False)
    for rows in reversed(torch.arange(50).split(7)):
        parts.add({"a": inputs["a"][rows]}, labels[rows])
    for name, value in whole.state_dict().items():
        assert torch.equal(parts.state_dict()[name], value)
    unit = inputs["a"] / inputs["a"].norm(dim=1, keepdim=True)
    sums = torch.stack([unit[labels == label].sum(dim=0) for label in range(3)])
    assert torch.allclose(whole.sums, sums.double(), atol=1e-6)
    assert whole.squares == 50


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"b": torch.rand(2, 3)}, "a"),
        ({"a": torch.rand(2, 3)}, r"a has shape \(N, 2\), got \(2, 3\)"),
        ({"a": torch.rand(2)}, r"a has shape \(N, 2\), got \(2,\)"),
        ({"a": torch.rand(2, 2)}, "logits"),
        (
            {"a": torch.rand(2, 2), "logits": torch.rand(2, 5)},
            r"logits has shape \(N, 4\)",
        ),
    ],
)
def test_other_features_are_refused(inputs: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Precomputed({"a": 2}, 4, has_logits=True)(inputs)


def test_features_have_names() -> None:
    for widths in ({}, {"logits": 3}):
        with pytest.raises(UsageError, match="Features have names"):
            Precomputed(widths, 2, has_logits=True)
