import numpy as np
import pytest
import torch

from goen.errors import UsageError
from goen.models.pooling import pool, pool_tokens


@pytest.mark.parametrize(
    ("pooling", "reference"),
    [
        ("mean", lambda row: row.mean()),
        ("mean_abs", lambda row: np.abs(row).mean()),
        ("std", lambda row: row.std()),
        ("max", lambda row: row.max()),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_each_channel_alone(pooling, reference, layout) -> None:  # type: ignore[no-untyped-def]
    maps = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    pooled = pool(maps.contiguous(memory_format=layout), pooling)
    slow = [[reference(channel.double().numpy().ravel()) for channel in image] for image in maps]
    np.testing.assert_allclose(pooled.numpy(), slow, atol=1e-6)


def test_an_unknown_pooling_is_an_error() -> None:
    with pytest.raises(UsageError, match="pooling"):
        pool(torch.zeros(1, 1, 2, 2), "median")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pooling", "reference"),
    [
        ("mean", lambda rows: rows.mean(0)),
        ("mean_abs", lambda rows: np.abs(rows).mean(0)),
        ("std", lambda rows: rows.std(0)),
        ("max", lambda rows: rows.max(0)),
    ],
)
def test_tokens_that_only_fill_up_are_left_out(pooling, reference) -> None:  # type: ignore[no-untyped-def]
    tokens = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(1)) - 2
    lengths = [6, 1, 3, 5]
    mask = torch.tensor([[int(place < length) for place in range(6)] for length in lengths])
    pooled = pool_tokens(tokens, pooling, mask)
    rows = zip(tokens.double().numpy(), lengths, strict=True)
    slow = np.stack([reference(row[:length]) for row, length in rows])
    np.testing.assert_allclose(pooled.numpy(), slow, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "mean_abs", "std", "max"])
def test_no_token_at_all_gives_zeros(pooling) -> None:  # type: ignore[no-untyped-def]
    pooled = pool_tokens(torch.randn(1, 3, 2), pooling, torch.zeros(1, 3, dtype=torch.long))
    assert pooled.tolist() == [[0.0, 0.0]]


def test_an_unknown_pooling_of_tokens_is_an_error() -> None:
    with pytest.raises(UsageError, match="pooling"):
        pool_tokens(torch.zeros(1, 2, 1), "median", torch.ones(1, 2))  # type: ignore[arg-type]
