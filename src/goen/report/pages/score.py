"""The page of ``goen score --report``: every image that was scored, the most suspicious first."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from goen.data.images.resizing import RESIZE_FILTER
from goen.data.imageset import ImageSet
from goen.gate import Gate
from goen.gate.flagged import MOST_TYPICAL, FlaggedGroups, group_features, group_images
from goen.gate.prediction import ScoreRow
from goen.gate.rates import Rates
from goen.io.files import printable
from goen.io.provenance import versions
from goen.report.blocks import FactTable, Page, PageBlock, Paragraph, Section
from goen.report.cards import cue_names, explain_neighbours, gate_gallery, make_cards
from goen.report.gallery import Card, Gallery
from goen.report.page import write_single_page
from goen.report.texts import named, text_of
from goen.scoring.pipeline import ScoredBatch

_text = partial(text_of, "score.html")
# With two small images each, a page of 20 to 30 megabytes.
MOST_IMAGES = 2_000
MOST_UNREADABLE = 200
_MOST_CLASSES = 50
# What a gallery of small cards shows before "all" is pressed: AT_ONCE in gallery.js.
_SHOWN = 24


# The place of an image in the gallery: p-value, score times -1, and place in the list of inputs.
_Rank = tuple[float, float, tuple[int, int]]
_Kept = tuple[_Rank, Path, Card, NDArray[np.float32]]


class SuspiciousImages:
    """Keeps the most suspicious of the images that are scored: an observer of ``score``.

    Args:
        most: how many images are kept.
    """

    def __init__(self, most: int = MOST_IMAGES) -> None:
        self.most = most
        self.kept: list[_Kept] = []
        self.counts: Counter[float] = Counter()
        self.unreadable: list[tuple[str, str]] = []
        self.num_unreadable = 0
        self._taken: set[_Rank] = set()

    def watch(self, gate: Gate, batch: ScoredBatch) -> None:
        """Keep what is among the most suspicious."""
        p, score = batch.prediction.p_value.tolist(), batch.prediction.score.tolist()
        shard, first = batch.place
        ranks = [(p[i], -score[i], (shard, first + i)) for i in range(len(p))]
        worst = self.kept[-1][0] if len(self.kept) == self.most else None
        rows = [i for i, rank in enumerate(ranks) if worst is None or rank < worst]
        rows = sorted(rows, key=ranks.__getitem__)[: self.most]
        cards = make_cards(
            gate,
            batch.images[rows],
            [printable(batch.names[i]) for i in rows],
            batch.outputs[torch.tensor(rows, dtype=torch.int64)],
            batch.prediction.take(rows),
        )
        features = group_features(batch.outputs)
        new = [
            # A copy: a row of the batch would keep the whole batch in memory.
            (ranks[i], Path(batch.names[i]), card, features[i].copy())
            for i, card in zip(rows, cards, strict=True)
        ]
        self.merge((new, Counter(p)))

    def watch_row(self, row: ScoreRow) -> None:
        """Keep the row of a file that could not be read."""
        self.num_unreadable += 1
        if len(self.unreadable) < MOST_UNREADABLE:
            path, error = str(row["path"]), str(row["error"])
            self.unreadable.append((path, error.removeprefix(path).strip()))

    def take(self) -> tuple[list[_Kept], Counter[float]]:
        """What was kept since the last call; what is worse than it stays left out."""
        new = [one for one in self.kept if one[0] not in self._taken]
        counts, self.counts = self.counts, Counter()
        self._taken = {kept[0] for kept in self.kept}
        return new, counts

    def merge(self, taken: tuple[list[_Kept], Counter[float]]) -> None:
        """Add what another process has taken."""
        new, counts = taken
        self.counts.update(counts)
        self.kept = sorted([*self.kept, *new], key=lambda kept: kept[0])[: self.most]


class ScoreReport:
    """The page of images that were scored.

    Args:
        gate: that scored them.
        gate_name: as the user named it.
        training: the images that the gate was fitted on, to show the nearest of them.
        training_files: of the training images; empty if they have none.
        most: how many images the page shows.

    Attributes:
        images: to be given to ``score`` as its observer.
    """

    def __init__(
        self,
        gate: Gate,
        gate_name: str,
        training: ImageSet | None = None,
        training_files: Sequence[Path] = (),
        *,
        most: int = MOST_IMAGES,
    ) -> None:
        self.gate = gate
        self.gate_name = gate_name
        self.training = training
        self.training_files = training_files
        self.images = SuspiciousImages(most)

    def write(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the page."""
        gate, images = self.gate, self.images
        gallery = gate_gallery(
            "scored-images",
            gate,
            [kept[2] for kept in images.kept],
            [kept[1] for kept in images.kept],
            self.training,
            self.training_files,
            Rates(gate.false_alarm_rate, gate.num_held_out, images.counts),
        )
        sections = [
            *self._flagged(),
            Section("Images", [gallery, explain_neighbours(gate)]),
        ]
        if images.num_unreadable:
            shown = len(images.unreadable)
            text = _text("unreadable", total=images.num_unreadable, shown=shown)
            table = FactTable(("file", "reason"), images.unreadable)
            sections.append(Section("Unreadable files", [text, table]))
        page = Page("Scored images", self._summary(), [*sections, self._origin()])
        write_single_page(page, path, overwrite=overwrite)

    def groups(self) -> FlaggedGroups:
        """The flagged images that are kept, in groups."""
        gate, flagged = self.gate, self._flagged_cards()
        names = gate.detector.cue_names
        return group_images(
            np.stack([feature for _, feature in flagged]) if flagged else np.zeros((0, 1)),
            [card.name for card, _ in flagged],
            [gate.classes[card.label] for card, _ in flagged],
            [
                names[int(np.argmin(card.cue_p_values))] if card.cue_p_values else None
                for card, _ in flagged
            ],
        )

    def _flagged_cards(self) -> list[tuple[Card, NDArray[np.float32]]]:
        kept, rate = self.images.kept, self.gate.false_alarm_rate
        return [(card, feature) for _, _, card, feature in kept if card.p_value <= rate]

    def _flagged(self) -> list[Section]:
        """The groups of the flagged images, each with its most typical ones."""
        found, cards = self.groups(), [card for card, _ in self._flagged_cards()]
        if not found.names:
            return []

        def gallery(name: str, shown: Sequence[tuple[int, str]]) -> Gallery:
            chosen = [replace(cards[row], note=note, nearest=()) for row, note in shown]
            return Gallery(name, chosen, self.gate.classes, cue_names(self.gate), small=True)

        numbered = [*enumerate(found.groups, 1)]
        rows = [
            (
                str(number),
                f"{len(group):,}",
                f"{group.nearest_class} ({group.class_share:.0%})",
                f"{group.cue} ({group.cue_share:.0%})" if group.cue else "–",
            )
            for number, group in numbered
        ]
        # Of every group some are seen before the reader asks for more.
        most = min(MOST_TYPICAL, _SHOWN // max(1, len(found.groups)))
        typical = [(row, f"group {n}") for n, group in numbered for row in group.rows[:most]]
        blocks: list[PageBlock] = [_text("groups", found=found, shown=most)]
        if rows:
            columns = ("group", "images", "classified as", "least p-value")
            blocks += [FactTable(columns, rows), gallery("typical-images", typical)]
        of = {row: f"group {n}" for n, group in numbered for row in group.rows}
        first = gallery("label-first", [(row, of.get(row, "")) for row in found.label_first])
        return [
            Section("What was flagged", blocks),
            Section("To label first", [_text("label_first", found=found), first]),
        ]

    def _summary(self) -> list[PageBlock]:
        total, gate = self.images.counts.total(), self.gate
        flagged = sum(n for p, n in self.images.counts.items() if p <= gate.false_alarm_rate)
        lead = _text(
            "lead",
            gate_name=self.gate_name,
            total=total,
            rate=gate.false_alarm_rate,
            flagged=flagged,
        )
        text = _text(
            "p_values",
            held_out=gate.num_held_out,
            per_class=gate.per_class,
            grouped=gate.held_out.groups is not None,
        )
        blocks: list[PageBlock] = [Paragraph(lead, "lead"), text]
        kept = self.images.kept
        if total > len(kept):
            left_out = _text("left_out", kept=len(kept), total=total, highest=kept[-1][0][0])
            blocks.append(Paragraph(left_out, "warn"))
        return blocks

    def _origin(self) -> Section:
        gate = self.gate
        size = f"{gate.image_size[0]}×{gate.image_size[1]}"
        form = str(gate.pixel_format)
        if not gate.pixel_format.is_shown_as_it_is:
            form += "; the mean of the channels is shown, from its lowest value to its highest"
        rows = [
            ("gate", self.gate_name),
            ("detector", f"{gate.detector.name}: {', '.join(gate.detector.cue_names)}"),
            ("classes", _listed(gate.classes)),
            ("thresholds", "one per predicted class" if gate.per_class else "one"),
            ("images are read as", form),
            ("images are resized to", f"{size}, {RESIZE_FILTER}"),
            ("versions", named(versions())),
        ]
        return Section("Origin", [FactTable(("what", "value"), rows)])


def _listed(classes: Sequence[str]) -> str:
    """All names, or of many the first."""
    if len(classes) <= _MOST_CLASSES:
        return ", ".join(classes)
    return f"{', '.join(classes[:_MOST_CLASSES])} and {len(classes) - _MOST_CLASSES:,} others"
