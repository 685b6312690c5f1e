"""The page of ``goen score --report``: every picture that was scored, the most suspicious first."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from markupsafe import Markup

from goen.data.imageset import ImageSet
from goen.data.pictures import RESIZE_FILTER
from goen.files import printable_path
from goen.gate import Gate
from goen.gate.score_files import ScoredBatch, ScoreRow
from goen.report.blocks import FactTable, Page, PageBlock, Paragraph, Section, bold
from goen.report.page import write_single_page
from goen.report.tiles import (
    explain_neighbours,
    make_tiles,
    training_pictures,
    with_thumbnails,
)
from goen.report.wall import Rates, Tile, Wall
from goen.runs.provenance import versions

# With two small pictures each, a page of 20 to 30 megabytes.
MOST_PICTURES = 2_000
MOST_UNREADABLE = 200
_MOST_CLASSES = 50


@dataclass(frozen=True, order=True)
class _Rank:
    """The place of a picture on the wall: lowest p-value, highest score, first in the list."""

    p_value: float
    minus_score: float
    number: int


class ScoreReport:
    """Collects scored pictures, in bounded memory, and writes their page.

    Args:
        gate: that scores them.
        gate_name: as the user named it.
        training: the images that the gate was fitted on, to show the nearest of them.
        training_files: of the training images; empty if they have none.
        most: how many pictures the page shows.
    """

    def __init__(
        self,
        gate: Gate,
        gate_name: str,
        training: ImageSet | None = None,
        training_files: Sequence[Path] = (),
        *,
        most: int = MOST_PICTURES,
    ) -> None:
        self.gate = gate
        self.gate_name = gate_name
        self.training = training
        self.training_files = training_files
        self.most = most
        self._kept: list[tuple[_Rank, Path, Tile]] = []
        self._counts: Counter[float] = Counter()
        self._unreadable: list[tuple[str, str]] = []
        self._num_unreadable = 0

    def watch(self, batch: ScoredBatch) -> None:
        """Keep what is among the most suspicious; for ``score_files``."""
        p, score = batch.prediction.p_value.tolist(), batch.prediction.score.tolist()
        first = self._counts.total()
        ranks = [_Rank(p[i], -score[i], first + i) for i in range(len(p))]
        self._counts.update(p)
        worst = self._kept[-1][0] if len(self._kept) == self.most else None
        rows = [i for i, rank in enumerate(ranks) if worst is None or rank < worst]
        rows = sorted(rows, key=ranks.__getitem__)[: self.most]
        tiles = self._tiles(batch, rows)
        new = [(ranks[i], batch.files[i], tile) for i, tile in zip(rows, tiles, strict=True)]
        self._kept = sorted([*self._kept, *new], key=lambda kept: kept[0])[: self.most]

    def _tiles(self, batch: ScoredBatch, rows: Sequence[int]) -> list[Tile]:
        return make_tiles(
            self.gate,
            batch.images[list(rows)],
            [printable_path(batch.files[i]) for i in rows],
            batch.outputs[torch.tensor(rows, dtype=torch.int64)],
            batch.prediction.take(rows),
        )

    def watch_row(self, row: ScoreRow) -> None:
        """Keep the row of a file that could not be read."""
        if row["label"] is None:
            self._num_unreadable += 1
            if len(self._unreadable) < MOST_UNREADABLE:
                path, error = str(row["path"]), str(row["error"])
                self._unreadable.append((path, error.removeprefix(path).strip()))

    def write(self, path: Path) -> None:
        """Write the page, in place of an earlier report."""
        tiles = with_thumbnails(
            [tile for _, _, tile in self._kept], [file for _, file, _ in self._kept]
        )
        pictures = {}
        if self.training is not None:
            pictures = training_pictures(tiles, self.training, self.training_files)
        kept, _ = self.gate.detector.num_kept
        wall = Wall(
            name="scored-pictures",
            tiles=tiles,
            classes=self.gate.classes,
            cues=self.gate.detector.cue_names if self.gate.detector.has_cue_p_values else (),
            layers=self.gate.detector.features if kept else (),
            rates=Rates(self.gate.false_alarm_rate, self.gate.num_held_out, self._counts),
            training=pictures,
        )
        write_single_page(Page("Scored pictures", self._summary(), self._sections(wall)), path)

    def _summary(self) -> list[PageBlock]:
        total, gate = self._counts.total(), self.gate
        flagged = sum(n for p, n in self._counts.items() if p <= gate.false_alarm_rate)
        lead = Markup(
            "The gate {} scored {} pictures. At its false-alarm rate of {} it flags {} of them as "
            "out-of-distribution (OOD)."
        ).format(self.gate_name, f"{total:,}", bold(gate.false_alarm_rate, "g"), bold(flagged, ","))
        held_out = f"{gate.num_held_out:,} held-out ID images"
        among, each = "", ""
        if gate.per_class:
            held_out = f"at least {held_out} of each class"
            among, each = " of the same predicted class", "of each predicted class "
        text = (
            "The most suspicious pictures come first. The p-value is the share of in-distribution "
            f"(ID) images{among} that score at least as high, estimated with {held_out}; a picture "
            "is flagged if its p-value is at most the false-alarm rate. So of ID pictures "
            f"{each}at most that rate is flagged, on average over held-out sets. The small picture "
            "in the corner is what the network saw."
        )
        blocks: list[PageBlock] = [Paragraph(lead, "lead"), Paragraph(text)]
        if total > len(self._kept):
            highest = self._kept[-1][0].p_value
            left_out = (
                f"The {len(self._kept):,} most suspicious of {total:,} pictures are shown. The "
                f"{total - len(self._kept):,} others have p-values of {highest:.2g} or more; they "
                "are counted, but not shown."
            )
            blocks.append(Paragraph(left_out, "warn"))
        return blocks

    def _sections(self, wall: Wall) -> list[Section]:
        sections = [Section("Pictures", [wall, Paragraph(explain_neighbours(self.gate))])]
        if self._num_unreadable:
            sections.append(self._unreadable_section())
        return [*sections, self._origin()]

    def _unreadable_section(self) -> Section:
        more = self._num_unreadable - len(self._unreadable)
        files = "1 file" if self._num_unreadable == 1 else f"{self._num_unreadable:,} files"
        text = f"{files} could not be read and got no score."
        if more:
            text += f" The first {len(self._unreadable)} are listed; {more:,} are not."
        table = FactTable(("file", "reason"), tuple(self._unreadable))
        return Section("Unreadable files", [Paragraph(text), table])

    def _origin(self) -> Section:
        gate = self.gate
        size = f"{gate.image_size[0]}×{gate.image_size[1]}"
        form = str(gate.picture_form)
        if not gate.picture_form.is_shown_as_it_is:
            form += "; the mean of the channels is shown, from its lowest value to its highest"
        rows = [
            ("gate", self.gate_name),
            ("detector", f"{gate.detector.kind}: {', '.join(gate.detector.cue_names)}"),
            ("classes", _listed(gate.classes)),
            ("thresholds", "one per predicted class" if gate.per_class else "one"),
            ("pictures are read as", form),
            ("pictures are resized to", f"{size}, {RESIZE_FILTER}"),
            ("versions", ", ".join(f"{name} {number}" for name, number in versions().items())),
        ]
        return Section("Origin", [FactTable(("what", "value"), tuple(rows))])


def _listed(classes: Sequence[str]) -> str:
    """All names, or of many the first."""
    if len(classes) <= _MOST_CLASSES:
        return ", ".join(classes)
    return f"{', '.join(classes[:_MOST_CLASSES])} and {len(classes) - _MOST_CLASSES:,} others"
