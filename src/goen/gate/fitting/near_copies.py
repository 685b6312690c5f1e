"""Near-copies among the images of a fit: found in its own pass, and described for people."""

from collections.abc import Mapping, Sequence
from logging import getLogger

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from goen.data.inputs import BatchStream
from goen.detectors import Detector
from goen.errors import first_of
from goen.functional.near_copies import NearCopies, Sketches, find_near_copies
from goen.outputs import Outputs

# Images that a sentence names.
_NAMED = 10
_log = getLogger(__name__)


class TrainingRows:
    """What is kept of all training images, in bounded memory, to compare held-out images with.

    Args:
        detector: whose features are compared; the logits if it reads none.
    """

    def __init__(self, detector: Detector) -> None:
        self._detector = detector
        self._sketches: Sketches | None = None
        self._labels: list[Tensor] = []

    def add(self, outputs: Outputs) -> None:
        """Add the next training images."""
        rows = self._rows(outputs)
        if self._sketches is None:
            self._sketches = Sketches(rows.shape[1])
        self._sketches.add(rows)
        self._labels.append(outputs.logits.argmax(dim=1))

    def _rows(self, outputs: Outputs) -> Tensor:
        """The features that the detector reads, as unit vectors side by side."""
        names = self._detector.feature_names(outputs)
        parts = [outputs.feature(name) for name in names] or [outputs.logits]
        return torch.cat([normalize(part.to(torch.float32), dim=1) for part in parts], dim=1)

    def compare(self, held_out: Outputs, streams: Mapping[str, BatchStream]) -> NearCopies | None:
        """The held-out images that lie near a training image or near each other.

        Of copies of one image, which a sampler may draw twice, the first counts. ``None`` if there
        are more training images than can be kept.

        Args:
            held_out: their outputs, finite.
            streams: ``held_out``, and ``train``, which were all added, in their order.
        """
        sketches = self._sketches
        if sketches is None or sketches.is_full:
            _log.info("The held-out images were not compared with so many training images.")
            return None
        rows = sketches.unit_rows()
        first = {
            role: np.sort(np.unique(streams[role].digests(), return_index=True)[1])
            for role in ("train", "held_out")
        }
        kept = first["train"][torch.isfinite(rows).all(dim=1).numpy()[first["train"]]]
        return find_near_copies(
            rows[kept],
            torch.cat(self._labels).numpy()[kept],
            sketches.unit_rows_of(self._rows(held_out)),
            held_out.logits.argmax(dim=1).numpy(),
            first["held_out"],
        )


def describe_near_copies(
    found: NearCopies | None, names: Sequence[object] = (), *, grouped: bool = False
) -> list[str]:
    """A sentence for each kind of near-copies that is more than chance; none if there are none.

    Args:
        found: of a fit.
        names: of the held-out images, such as their files; else they are numbered.
        grouped: whether the held-out images come in groups, which may be near-copies within.
    """
    if found is None:
        return []

    def listed(rows: Sequence[int]) -> str:
        shown = [str(names[row]) if names else str(row) for row in rows]
        what = "" if names else "rows " if len(rows) > 1 else "row "
        return f"{what}{first_of(shown, _NAMED)}"

    sentences = []
    near = found.of_training
    expected = f"about {max(round(found.compared / 100), 1):,} of separate images would"
    if not near.is_chance:
        sentences.append(
            f"{len(near.rows):,} of {found.compared:,} held-out images lie nearer to a training "
            f"image than 99 % of the training images to another; {expected}. They are near-copies, "
            "such as training images saved again or frames of the same video, so the false-alarm "
            "rate does not hold: far more new images may be flagged. Hold out images of other "
            f"scenes, patients or videos. Near-copies: {listed(near.rows.tolist())}."
        )
    near = found.of_each_other
    if not near.is_chance and not grouped:
        sentences.append(
            f"{len(near.rows):,} of {found.compared:,} held-out images lie nearer to each other "
            f"than 99 % of as many training images; {expected}. They are near-copies, such as "
            "frames of one video, and count for less than separate images, so the false-alarm "
            "rate does not hold: far more new images may be flagged. Give the scene, patient or "
            "video of each held-out image (groups in Python, --groups on the command line), or "
            f"hold out one image of each. Near-copies: {listed(near.rows.tolist())}."
        )
    return sentences
