"""One network or several, each image once or averaged over its flips: by the selection sets.

    python recipes/ensembles.py fast --data-dir DATA        (trains three networks of this preset)
    python recipes/ensembles.py fast-bf16 --data-dir DATA

goen-m's cues for the fast network, on the images of recipes/poolings.py and no others. Writes
results/ensembles/PRESET.jsonl, a line per ensemble and number of rows.
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Literal

import torch
import tyro
from poolings import (
    CALIBRATION,
    REAL,
    TRAIN,
    cues_from,
    judged,
    selection_protocol,
    selection_sets,
)
from torch import Tensor, nn

from goen.extraction import extract
from goen.io.provenance import hardware, versions
from goen.io.stages import Stages
from goen.metrics import over_seeds
from goen.models.ensemble import joined
from goen.outputs import Outputs
from goen.report.table import Cell, Row, Table
from goen.studies.methods import labels_of
from goen.studies.networks import train
from goen.studies.presets import choose_preset

OUT = Path(__file__).parents[1] / "results" / "ensembles"
LAYERS = ("block2", "block3.conv1")
SEEDS = (42, 123, 2024)
ROWS = (3_000, 1_900)
PLAIN, FLIPPED = "plain", "flipped"
# Of each network: how it sees an image.
ONE, OTHER, BOTH = (PLAIN,), (FLIPPED,), (PLAIN, FLIPPED)
Member = tuple[int, tuple[str, ...]]
PAIRS = ((42, 123), (123, 2024), (2024, 42))
ENSEMBLES: dict[str, tuple[tuple[Member, ...], ...]] = {
    "one network": tuple(((seed, ONE),) for seed in SEEDS),
    "one network, flip-averaged": tuple(((seed, BOTH),) for seed in SEEDS),
    "two networks": tuple(((first, ONE), (second, ONE)) for first, second in PAIRS),
    "two networks, the second sees flipped images": tuple(
        ((first, ONE), (second, OTHER)) for first, second in PAIRS
    ),
    "two networks, flip-averaged": tuple(
        ((first, BOTH), (second, BOTH)) for first, second in PAIRS
    ),
    "three networks, flip-averaged": (tuple((seed, BOTH) for seed in SEEDS),),
}
Views = dict[tuple[int, str], Outputs]


class Flipped(nn.Module):
    """A network that sees horizontally flipped images."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Outputs:
        outputs: Outputs = self.network(images.flip(3))
        return outputs


def ensemble_outputs(members: tuple[Member, ...], views: Views) -> Outputs:
    """Of an ensemble, from the outputs of each network and view."""
    passes = [
        _joined([views[seed, seen[turn % len(seen)]] for seed, seen in members])
        for turn in range(max(len(seen) for _, seen in members))
    ]
    logits = torch.stack([one.logits for one in passes]).mean(dim=0)
    features = {
        layer: torch.stack([one.features[layer] for one in passes]).mean(dim=0) for layer in LAYERS
    }
    return Outputs(logits, features)


def _joined(members: list[Outputs]) -> Outputs:
    return members[0] if len(members) == 1 else joined(members)


def measured(
    members: tuple[Member, ...], rows: int, views: dict[str, Views], labels: dict[str, Tensor]
) -> dict[str, object]:
    """Accuracy on the calibration images, and AUROC by set."""
    outputs = {name: ensemble_outputs(members, of_set) for name, of_set in views.items()}
    cues = cues_from(outputs, labels[TRAIN], rows)
    hits = outputs[CALIBRATION].logits.argmax(dim=1) == labels[CALIBRATION]
    auroc = {name: round(value, 5) for name, value in judged(cues, list(cues)).items()}
    return {"accuracy": round(hits.double().mean().item(), 4), "auroc": auroc}


def table(preset: str) -> Table:
    """What results/ensembles has of this preset, for docs/results.md."""
    text = (OUT / f"{preset}.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()[1:]]

    def row(name: str, rows: int) -> Row:
        found = [line for line in lines if (line["ensemble"], line["rows"]) == (name, rows)]
        columns = [
            [line["accuracy"] for line in found],
            *([line["auroc"][dataset] for line in found] for dataset in REAL),
            [fmean(line["auroc"][dataset] for dataset in REAL) for line in found],
        ]
        cells = [
            Cell(fmean(values), spread=over_seeds(values).sd if len(values) > 1 else None)
            for values in columns
        ]
        passes = sum(len(seen) for _, seen in ENSEMBLES[name][0])
        counts = Cell(len(found), ".0f"), Cell(passes, ".0f"), Cell(rows, ",.0f")
        return Row(name, (*counts, *cells))

    title = f"Ensembles of preset {preset}: AUROC by goen-m's cues on the selection sets"
    names = ("ensembles", "passes", "rows", "accuracy*", "SVHN*", "CIFAR-100*", "noise*", "mean*")
    notes = (
        "Mean ± standard deviation over the networks, or over their pairs. "
        "Accuracy on the 3,000 calibration images, which are the ID side. SVHN's calibration "
        "images, the fifty classes of CIFAR-100 that the protocol leaves out, and noise.",
    )
    measured = {line["ensemble"] for line in lines}
    rows = tuple(row(name, count) for name in ENSEMBLES if name in measured for count in ROWS)
    return Table("ensembles", title, names, rows, notes)


def main(
    preset: tyro.conf.Positional[Literal["fast", "fast-bf16"]],
    seeds: tuple[int, ...] = SEEDS,
    data_dir: Path | None = None,
    stages: Path = Path("runs/stages"),
) -> None:
    """Measure every ensemble of these networks, print and write.

    Args:
        preset: of the networks.
        seeds: of the networks; ensembles with others are left out.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished trainings are kept.
    """
    p = selection_protocol(data_dir)
    sets = {name: s for name, s in selection_sets(p) if name in (TRAIN, CALIBRATION, *REAL)}
    views: dict[str, Views] = {name: {} for name in sets}
    torch.set_num_threads(1)  # the number is part of a training's key
    for seed in seeds:
        chosen = choose_preset(preset, p, "full", seed)
        settings = chosen.network, chosen.training, p.train, p.calibration_id
        network = train(*settings, Stages(stages), torch.device("cpu")).network
        for view, module in ((PLAIN, network), (FLIPPED, Flipped(network))):
            for name, images in sets.items():
                views[name][seed, view] = extract(module, images).keep(LAYERS)
    labels = {name: labels_of(images.labels) for name, images in sets.items()}
    lines: list[dict[str, object]] = [{"versions": versions(), "hardware": hardware()}]
    for name, kinds in ENSEMBLES.items():
        for members in kinds:
            joined_seeds = [seed for seed, _ in members]
            if not {*joined_seeds} <= {*seeds}:
                continue
            for rows in ROWS:
                found = measured(members, rows, views, labels)
                lines.append({"ensemble": name, "seeds": joined_seeds, "rows": rows, **found})
                print(lines[-1], flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (OUT / f"{preset}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
