import numpy as np
import pytest
import torch

from goen.errors import UsageError
from goen.models.pooling import pool


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
