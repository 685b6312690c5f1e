"""What did a gate flag? Flagged images in groups, and those that are worth a person's time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from goen.errors import UsageError
from goen.functional.grouping import NONE, group_rows, representatives, unit_rows
from goen.gate.prediction import Prediction
from goen.io.manifest import JsonObject
from goen.outputs import Outputs

LABEL_FIRST = 20
MOST_TYPICAL = 8


@dataclass(frozen=True)
class FlaggedGroup:
    """Flagged images that are near each other.

    Attributes:
        rows: of the flagged images, the most typical first.
        nearest_class: the class that was predicted most often, and
        class_share: for which share of them.
        cue: that had the least p-value most often; none if the gate has no p-values of cues.
        cue_share: for which share of them.
    """

    rows: tuple[int, ...]
    nearest_class: str
    class_share: float
    cue: str | None = None
    cue_share: float = 0.0

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class FlaggedGroups:
    """The flagged images of a gate in groups; ``gate.group_flagged`` makes them.

    Attributes:
        names: of the N flagged images.
        groups: the largest first; none if the images do not fall into groups.
        ungrouped: the rows of the others.
        label_first: the rows that together stand for all flagged images, at most twenty, the most
            important first: whoever looks at these has seen the most of what was flagged.
    """

    names: tuple[str, ...]
    groups: tuple[FlaggedGroup, ...]
    ungrouped: tuple[int, ...]
    label_first: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        lines = [f"{len(self):,} flagged images, {self._of_groups()}"]
        lines += [
            f"  {number}: {len(group):,} images, {group.class_share:.0%} of them classified as "
            f"{group.nearest_class}"
            + (f"; found by {group.cue} ({group.cue_share:.0%})" if group.cue else "")
            for number, group in enumerate(self.groups, 1)
        ]
        return "\n".join(lines)

    def _of_groups(self) -> str:
        if not self.groups:
            return "in no groups"
        groups = "1 group" if len(self.groups) == 1 else f"{len(self.groups)} groups"
        return f"in {groups}; {len(self.ungrouped):,} in none"

    def to_json(self) -> JsonObject:
        """For programs: sizes, classes, cues, and the names of all images by group."""

        def named(rows: Sequence[int]) -> list[str]:
            return [self.names[row] for row in rows]

        return {
            "flagged": len(self),
            "groups": [
                {
                    "size": len(group),
                    "nearest_class": group.nearest_class,
                    "class_share": group.class_share,
                    "cue": group.cue,
                    "cue_share": group.cue_share,
                    "images": named(group.rows),
                }
                for group in self.groups
            ],
            "ungrouped": named(self.ungrouped),
            "label_first": named(self.label_first),
        }


def group_images(
    features: NDArray[np.float32 | np.float64],
    names: Sequence[str],
    labels: Sequence[str],
    cues: Sequence[str | None],
) -> FlaggedGroups:
    """The groups of flagged images.

    Args:
        features: ``(N, D)``; images with NaN or infinity are in no group and not labelled first.
        names: of the images.
        labels: the predicted class of each.
        cues: the cue with the least p-value of each.
    """
    if not len(features) == len(names) == len(labels) == len(cues):
        raise UsageError("Features, names, labels and cues are of the same images.")
    finite = np.flatnonzero(np.isfinite(features).all(axis=1))
    rows = unit_rows(features[finite].astype(np.float64))
    found = np.full(len(names), NONE)
    found[finite] = group_rows(rows)
    groups = []
    for number in range(found.max(initial=NONE) + 1):
        members = np.flatnonzero(found[finite] == number)
        distances = np.linalg.norm(rows[members] - rows[members].mean(axis=0), axis=1)
        own = finite[members[np.argsort(distances, kind="stable")]].tolist()
        label, class_share = _most_common([labels[row] for row in own])
        cue, cue_share = _most_common([cues[row] for row in own])
        groups.append(FlaggedGroup(tuple(own), str(label), class_share, cue, cue_share))
    return FlaggedGroups(
        tuple(names),
        tuple(groups),
        tuple(np.flatnonzero(found == NONE).tolist()),
        tuple(finite[representatives(rows, LABEL_FIRST)].tolist()),
    )


def group_features(outputs: Outputs) -> NDArray[np.float32]:
    """What images are grouped by, ``(N, D)``: the last feature that the detector reads, else the
    logits."""
    kept = outputs.features[outputs.last_feature] if outputs.features else outputs.logits
    return kept.detach().float().cpu().numpy()


def deciding_cues(prediction: Prediction) -> list[str | None]:
    """The cue with the least p-value of each image; ``None`` where cues have no p-values."""
    if not prediction.cue_p_values:
        return [None] * len(prediction)
    names, p_values = zip(*prediction.cue_p_values.items(), strict=True)
    return [names[cue] for cue in np.argmin(p_values, axis=0)]


def _most_common(values: Sequence[str | None]) -> tuple[str | None, float]:
    (value, count), *_ = Counter(values).most_common(1)
    return value, count / len(values)
