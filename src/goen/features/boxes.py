"""What an object detector finds: a row of ``Outputs`` for each box, for gates that decide per box.

A box has a feature and class scores as an image has, so gates, detectors and metrics take the rows
as they are: ``Gate.fit_outputs(train.outputs, labels, held_out.outputs, groups=held_out.image)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from goen.errors import UsageError
from goen.models.placement import evaluating, full_precision, placement
from goen.outputs import Outputs

FEATURE = "box"
"""The name of the feature of a box."""
FoundInImage: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""The boxes of an image: corners ``(n, 4)``, class logits ``(n, C)`` and features ``(n, D)``."""
Detect: TypeAlias = Callable[[Any], Sequence[FoundInImage]]
_PARTS = ("logits", "pred_boxes", "last_hidden_state")


@dataclass(frozen=True, eq=False)
class Boxes:
    """The N boxes of several images.

    Attributes:
        corners: ``(N, 4)``: left, top, right, bottom, in the unit of the detector; of models of
            transformers as shares of the image's width and height.
        image: ``(N,)``, the number of the image that each lies in, from 0.
        outputs: class logits, and the feature ``box``.
        num_images: images without a box count.
    """

    corners: Tensor
    image: NDArray[np.int64]
    outputs: Outputs
    num_images: int

    def __len__(self) -> int:
        return len(self.image)

    def __repr__(self) -> str:
        return f"Boxes({len(self):,} in {self.num_images:,} images, {self.outputs})"

    def take(self, rows: NDArray[Any]) -> Boxes:
        """These boxes, by their numbers or a mask; the images keep their numbers."""
        chosen = torch.as_tensor(np.arange(len(self))[rows])
        outputs = self.outputs[chosen]
        return replace(self, corners=self.corners[chosen], image=self.image[rows], outputs=outputs)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """``box`` and ``logits``, for ``numpy.savez`` and ``goen score FILE.npz``: a row a box."""
        return {
            FEATURE: self.outputs.feature(FEATURE).numpy(),
            "logits": self.outputs.logits.numpy(),
        }

    def labels(
        self, truth: Sequence[tuple[Tensor, Tensor]], *, overlap: float = 0.5
    ) -> NDArray[np.int64]:
        """``(N,)``: the class of the true box that each overlaps most; -1 if none enough.

        Args:
            truth: of each image the corners ``(m, 4)`` and the classes ``(m,)`` of its objects.
            overlap: intersection over union that is enough.

        Raises:
            UsageError: the truth of another number of images.
        """
        if len(truth) != self.num_images:
            raise UsageError(
                f"These are the boxes of {self.num_images} images, and the truth is of "
                f"{len(truth)}: give an empty entry for an image without objects."
            )
        labels = np.full(len(self), -1, np.int64)
        for number, (corners, classes) in enumerate(truth):
            rows = np.flatnonzero(self.image == number)
            if len(rows) and len(classes):
                shares = intersection_over_union(self.corners[rows], torch.as_tensor(corners))
                most, place = shares.max(dim=1)
                found = torch.where(most >= overlap, torch.as_tensor(classes)[place], -1)
                labels[rows] = found.numpy()
        return labels


def find_boxes(
    detector: nn.Module | Detect,
    batches: Iterable[Tensor | Mapping[str, Tensor]],
    *,
    threshold: float = 0.5,
) -> Boxes:
    """The boxes that a detector finds in images, each with its class logits and its feature.

    Args:
        detector: a DETR-like model of transformers (DETR, YOLOS, RT-DETR and others that return
            ``logits``, ``pred_boxes`` and ``last_hidden_state``), of which each query is a box; or
            a function from a batch to, for each of its images, corners ``(n, 4)``, logits
            ``(n, C)`` and features ``(n, D)``, tensors or arrays.
        batches: of what the detector takes: ``pixel_values``, or the dict of an image processor.
        threshold: queries with a lower probability of every class are no boxes. Of a function all
            boxes are taken.

    Raises:
        UsageError: a model or a function with other outputs, or no images.
    """
    found: list[FoundInImage] = []
    for batch in [batches] if isinstance(batches, Tensor | Mapping) else batches:
        if isinstance(detector, nn.Module):
            found += _of_queries(detector, batch, threshold)
        else:
            found += [_checked(parts) for parts in detector(batch)]
    if not found:
        raise UsageError("There are no images to find boxes in.")
    corners, logits, features = (
        torch.cat([part[i].float().cpu() for part in found]) for i in range(3)
    )
    counts = [len(part[0]) for part in found]
    image = np.repeat(np.arange(len(found)), counts)
    return Boxes(corners, image, Outputs(logits, {FEATURE: features}), len(found))


def _of_queries(
    model: nn.Module, batch: Tensor | Mapping[str, Tensor], threshold: float
) -> list[FoundInImage]:
    """The queries of each image that are an object."""
    device, _ = placement(model)
    given = batch if isinstance(batch, Mapping) else {"pixel_values": batch}
    pixels = given.get("pixel_values")
    if not isinstance(pixels, Tensor) or pixels.ndim != 4:
        got = (
            f"a tensor {tuple(pixels.shape)}"
            if isinstance(pixels, Tensor)
            else type(batch).__name__
        )
        raise UsageError(
            "A batch for this model is a tensor (N, C, H, W), one image for one a tensor with N = "
            f"1, or the dict of its image processor with return_tensors='pt'; got {got}."
        )
    with evaluating(model), full_precision(), torch.no_grad():
        output = model(**{name: part.to(device) for name, part in given.items()})
    parts: list[Any] = [getattr(output, name, None) for name in _PARTS]
    num_classes = getattr(getattr(model, "config", None), "num_labels", None)
    if any(part is None for part in parts) or num_classes is None:
        raise UsageError(
            f"{type(model).__name__} does not return {', '.join(_PARTS)}, as DETR-like models of "
            "transformers do. Give a function that returns corners, logits and features of the "
            "boxes of each image."
        )
    logits, boxes, features = parts
    # One more than there are classes: the last is "no object", and the classes exclude each other.
    exclusive = logits.shape[2] == num_classes + 1
    probability = logits.softmax(dim=2)[..., :-1] if exclusive else logits.sigmoid()
    kept = probability.amax(dim=2) >= threshold
    centre, size = boxes[..., :2], boxes[..., 2:]
    corners = torch.cat([centre - size / 2, centre + size / 2], dim=2)
    queries = features[:, -logits.shape[1] :]  # YOLOS has its detection tokens behind the others
    return [
        (corners[i][kept[i]], logits[i][kept[i], :num_classes], queries[i][kept[i]])
        for i in range(len(logits))
    ]


def _checked(parts: object) -> FoundInImage:
    """The boxes of an image, as a function gave them, as tensors."""
    what = (
        "A function that finds boxes gives three tensors or arrays for each image: corners (n, 4), "
        "class logits (n, C) and features (n, D)"
    )
    if not isinstance(parts, tuple | list) or len(parts) != 3:
        got = f"{len(parts)} parts" if isinstance(parts, tuple | list) else type(parts).__name__
        raise UsageError(f"{what}; got {got}.")
    corners, logits, features = (torch.as_tensor(part).detach() for part in parts)
    if not len(corners) == len(logits) == len(features):
        counts = ", ".join(str(len(part)) for part in (corners, logits, features))
        raise UsageError(f"{what}; got parts of {counts} boxes.")
    shapes = [tuple(part.shape) for part in (corners, logits, features)]
    if len(corners) and ([len(shape) for shape in shapes] != [2, 2, 2] or shapes[0][1] != 4):
        raise UsageError(
            f"{what}; got {', '.join(map(str, shapes))}. If it knows one score of each box and no "
            "logits, give torch.zeros(n, 1) for them, and fit on boxes.outputs.features."
        )
    return corners, logits, features


def intersection_over_union(first: Tensor, second: Tensor) -> Tensor:
    """``(N, M)``: of corners ``(N, 4)`` and ``(M, 4)``; 0 where both are empty.

    Example:
        >>> one, other = torch.tensor([[0, 0, 2, 2]]), torch.tensor([[1, 0, 3, 2]])
        >>> round(intersection_over_union(one, other).item(), 4)
        0.3333
    """
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    both = (high - low).clamp(min=0).prod(dim=2)
    areas = [(part[:, 2:] - part[:, :2]).clamp(min=0).prod(dim=1) for part in (first, second)]
    union = areas[0][:, None] + areas[1][None] - both
    return torch.where(union > 0, both / union, 0.0)
