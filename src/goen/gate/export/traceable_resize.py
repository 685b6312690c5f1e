"""The resize of ``read_image`` once more, in operations that torch.export and ONNX can hold.

Pillow computes its weights in float64, rounds them to 22 bits and adds up whole numbers. Here the
same whole numbers are multiplied as matrices of float64. None of them reaches 2^53, so every sum is
exact in whatever order an engine adds, and the pixels are those of Pillow bit for bit. The operator
``Resize`` of ONNX would be shorter, but onnxruntime computes its weights in float32: of enlarged
noise 5 % of the pixels differ, by up to two levels.
"""

import torch
from torch import Tensor, nn

# Of the weights, after the point.
_BITS = 22
# Rows that are computed by one matrix product, from the part of the picture that they depend on: a
# product for all of them would mostly multiply by zeros.
_BLOCK = 16


class TraceableResize(nn.Module):
    """Images ``(N, C, H, W)`` uint8 of any height and width, resized as ``read_image`` does.

    Args:
        size: (height, width) of the result.

    Example:
        >>> TraceableResize((1, 2))(torch.tensor([[[[0, 10, 20, 30]]]], dtype=torch.uint8)).tolist()
        [[[[7, 23]]]]
    """

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        height, width = self.size
        # The side to resize comes first, and all else is one axis: an empty batch is then a matrix
        # without columns, which every engine can multiply.
        columns = images.permute(3, 0, 1, 2)
        columns = _resized(columns.flatten(1), width).view(width, *columns.shape[1:])
        rows = columns.permute(3, 1, 2, 0)
        rows = _resized(rows.flatten(1), height).view(height, *rows.shape[1:])
        return rows.permute(1, 2, 0, 3)


def _resized(rows: Tensor, target: int) -> Tensor:
    """Rows ``(n, M)`` uint8 as ``(target, M)``: averages under a triangle as wide as two rows of
    the result, at least as two of the source."""
    count = rows.shape[0]
    block = min(_BLOCK, target)
    blocks = -(-target // block)
    scale = torch.scalar_tensor(count, dtype=torch.float64) / target
    reach = scale.clamp_min(1.0)
    centres = (torch.arange(blocks * block, dtype=torch.float64) + 0.5) * scale
    centres = centres.view(blocks, block, 1)
    first = (centres[:, :1] - reach).clamp_min(0).to(torch.int64)
    # From the first row that the block depends on to the last, or some further ones of weight 0.
    places = first + torch.arange((block + 1) * count // target + 4)
    weights = (1 - ((places - centres + 0.5) * (1 / reach)).abs()).clamp_min(0)
    weights = torch.where(places < count, weights, torch.zeros_like(weights))
    # Half at the least, except of the rows behind the target, which have none.
    weights = weights / weights.sum(dim=2, keepdim=True).clamp_min(0.25)
    whole = torch.floor(weights * 2**_BITS + 0.5)
    parts = rows.index_select(0, places.clamp_max(count - 1).flatten()).to(torch.float64)
    sums = whole @ parts.view(blocks, places.shape[2], rows.shape[1])
    levels = torch.floor((sums.flatten(0, 1)[:target] + 2 ** (_BITS - 1)) / 2**_BITS)
    return levels.to(torch.uint8)
