"""What did a gate flag? Groups and labels: python recipes/flagged_groups.py --data-dir DATA

CIFAR-10's test images mixed with images of other sets pass the bundled gate cifar10-w16. Do the
groups of the flagged images agree with where the images come from, what is found where there is one
source alone, and how much do twenty labels say about all of them: if every flagged image gets the
label of the nearest labelled one, with the twenty that goen names, the twenty most suspicious, and
twenty at random? Writes results/gates/flagged.jsonl and docs/pictures/flagged.png.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from matplotlib import pyplot as plt
from numpy.typing import NDArray
from paired import read_lines
from sets import EXTRA
from sklearn.metrics import adjusted_rand_score

import goen
from goen.data import protocol
from goen.functional.grouping import unit_rows
from goen.gate import Gate
from goen.gate.flagged import FlaggedGroups, deciding_cues, group_features, group_images
from goen.gate.prediction import most_suspicious
from goen.io.provenance import hardware, versions
from goen.report.table import Cell, Row, Table

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "gates" / "flagged.jsonl"
PICTURE = ROOT / "docs" / "pictures" / "flagged.png"
MIXES = {
    "svhn, textures, mnist and ID": {"svhn": 400, "textures": 400, "mnist": 400, "ID": 2000},
    "svhn and textures, three to one": {"svhn": 600, "textures": 200, "ID": 1000},
    "places and tiny-imagenet": {"places": 500, "tiny-imagenet": 500, "ID": 1000},
    "svhn alone": {"svhn": 600},
    "ID alone": {"ID": 4000},
}
RANDOM_DRAWS = 20


@dataclass(frozen=True)
class Line:
    """One mix of images.

    Attributes:
        mix: what was in it.
        flagged: images.
        groups: found.
        grouped: share of the flagged images in a group.
        agreement: adjusted Rand index of groups and sources, of grouped images; ``None`` without
            groups or with one source.
        labelled: share of flagged images whose source the nearest of the twenty has.
        suspicious: the same with the twenty most suspicious, and
        random: with twenty at random, the mean of twenty draws.
        random_sd: of those draws.
        seconds: to group them and to choose.
    """

    mix: str
    flagged: int
    groups: int
    grouped: float
    agreement: float | None
    labelled: float
    suspicious: float
    random: float
    random_sd: float
    seconds: float


def right(rows: NDArray[np.float64], truth: NDArray[np.str_], chosen: list[int]) -> float:
    """The share of images whose nearest chosen image comes from the same source."""
    nearest = (rows @ rows[chosen].T).argmax(axis=1)
    return float((truth[chosen][nearest] == truth).mean())


def measured(gate: Gate, name: str, sets: dict[str, goen.data.ImageSet]) -> Line:
    images = np.concatenate([sets[part].read(range(n)) for part, n in MIXES[name].items()])
    sources = np.repeat([*MIXES[name]], [*MIXES[name].values()])
    parts = [gate.outputs(images[start : start + 128]) for start in range(0, len(images), 128)]
    outputs = goen.Outputs.concatenate(parts)
    prediction = gate.predict_outputs(outputs)
    flagged = np.flatnonzero(prediction.is_ood)
    truth, found = sources[flagged], prediction.take(flagged.tolist())
    features = group_features(outputs[torch.from_numpy(flagged)])
    start = time.process_time()
    groups = group_images(
        features, [*map(str, flagged)], found.class_names.tolist(), deciding_cues(found)
    )
    seconds = time.process_time() - start
    if name == next(iter(MIXES)):
        draw(images[flagged], groups)
    rows = unit_rows(features.astype(np.float64))
    of = np.full(len(flagged), -1)
    for number, group in enumerate(groups.groups):
        of[list(group.rows)] = number
    count = len(groups.label_first)
    rng = np.random.default_rng(0)
    random = [
        right(rows, truth, rng.permutation(len(rows))[:count].tolist()) for _ in range(RANDOM_DRAWS)
    ]
    several = len(groups.groups) > 0 and len(np.unique(truth)) > 1
    print(groups)
    return Line(
        mix=name,
        flagged=len(flagged),
        groups=len(groups.groups),
        grouped=float((of >= 0).mean()),
        agreement=float(adjusted_rand_score(truth[of >= 0], of[of >= 0])) if several else None,
        labelled=right(rows, truth, list(groups.label_first)),
        suspicious=right(rows, truth, most_suspicious(found)[:count]),
        random=float(np.mean(random)),
        random_sd=float(np.std(random, ddof=1)),
        seconds=seconds,
    )


def draw(images: NDArray[np.uint8], found: FlaggedGroups) -> None:
    """The most typical images of each group, and those to label first."""
    columns = 10
    lines = [(f"group {n}: {len(g):,}", g.rows[:columns]) for n, g in enumerate(found.groups, 1)]
    lines += [("label first", found.label_first[:columns])]
    figure, axes = plt.subplots(
        len(lines), columns, figsize=(7.2, 0.75 * len(lines)), layout="constrained", squeeze=False
    )
    for (title, rows), line in zip(lines, axes, strict=True):
        for ax in line:
            ax.set_axis_off()
        for ax, row in zip(line, rows, strict=False):
            ax.imshow(images[row].transpose(1, 2, 0))
        line[0].text(-0.15, 0.5, title, ha="right", va="center", transform=line[0].transAxes)
    figure.savefig(PICTURE, dpi=110)


def tables(file: Path = OUT) -> dict[str, Table]:
    """The table of docs/flagged.md."""
    found = [Line(**entry) for entry in read_lines(file) if "mix" in entry]
    rows = [
        Row(
            one.mix,
            (
                Cell(one.flagged, ",.0f"),
                Cell(one.groups, ".0f"),
                Cell(one.grouped, ".0%"),
                Cell(text="–") if one.agreement is None else Cell(one.agreement, ".2f"),
                Cell(one.labelled, ".1%"),
                Cell(one.suspicious, ".1%"),
                Cell(one.random, ".1%"),
            ),
        )
        for one in found
    ]
    columns = (
        "flagged", "groups", "in a group", "agreement with the sources", "twenty to label first",
        "twenty most suspicious", "twenty at random",
    )  # fmt: skip
    notes = (
        "Agreement: adjusted Rand index, 1 if groups are the sources. The last three: share of the "
        "flagged images whose source is that of the nearest of twenty labelled ones; at random: "
        f"mean of {RANDOM_DRAWS} draws.",
    )
    title = "Flagged images of several sources, gate cifar10-w16"
    table = Table("flagged", title, columns, tuple(rows), notes)
    return {table.name: table}


def main(data_dir: Path | None = None) -> None:
    """Score, group, compare and write."""
    torch.set_num_threads(1)
    gate = goen.load("cifar10-w16")
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    sets = {name: split.images for name, split in p.evaluation.items()} | {"ID": p.test}
    lines = []
    for name in MIXES:
        lines.append(measured(gate, name, sets))
        print(lines[-1], flush=True)
    made = {"versions": versions(), "hardware": hardware(), "config": {"mixes": MIXES}}
    text = "".join(json.dumps(entry) + "\n" for entry in [made, *map(asdict, lines)])
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
