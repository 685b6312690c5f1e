"""What each option of the training does to accuracy and OOD detection: a short training for each.

    python recipes/options.py none rotation --seed 42 --data-dir DATA
    python recipes/options.py smoothing-0.1 --full --seed 42 --data-dir DATA

The fast network at half its width, ten epochs, of which four on images of 24 pixels: ten minutes of
one core that multiplies bfloat16. One option at a time differs from preset fast-bf16 with label
smoothing 0.2, which the preset had when these were measured; with --full the network has its whole
width and twenty epochs, an hour.
AUROC by goen-m's four cues for that network, by energy alone, by the distance in the last block and
by the best of all candidates of recipes/poolings.py, flip-averaged, on its selection sets and no
others; accuracy on the test images. A network that was trained with logit normalisation is read as
it was trained: its logits are scaled first. Writes results/options/OPTION-SEED.jsonl,
for whole trainings results/options/full/OPTION-SEED.jsonl.
"""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import tyro
from poolings import REAL, EveryPooling, candidates, cues_of, judged, selection_protocol
from torch import Tensor, nn
from torch.nn.functional import normalize

from goen.errors import unknown
from goen.extraction import extract
from goen.io.provenance import hardware, versions
from goen.io.stages import Stages
from goen.metrics import over_seeds
from goen.models.flip_averaging import FlipAveraged
from goen.outputs import Outputs
from goen.report.table import Cell, Row, Table
from goen.studies.networks import train
from goen.studies.presets import choose_preset

OUT = Path(__file__).parents[1] / "results" / "options"
WIDTH, EPOCHS, SMALL = 32, 10, 4
# Of preset fast-bf16 before it was changed by these results; every option is compared with it.
SMOOTHING = 0.2
OPTIONS: dict[str, dict[str, object]] = {
    "none": {},
    "rotation": {"rotation_loss": 0.5},
    "logit-norm": {"logit_norm": 0.04, "label_smoothing": 0.0},
    "no-smoothing": {"label_smoothing": 0.0},
    "smoothing-0.1": {"label_smoothing": 0.1},
    "no-look-ahead": {"look_ahead": 0},
    "same-bias-rate": {"norm_bias_rate": 1.0},
    "random-flip": {"flip": "random"},
    "no-shifts": {"padding": 0},
    "cutout-8": {"cutout": 8},
    "one-size": {"epochs": 8, "sizes": ()},  # as long as the others
    "float32": {"precision": "float32"},
}
TITLES = {
    "none": "preset `fast-bf16` with label smoothing 0.2",
    "rotation": "rotation loss",
    # Of a weaker form of PixMix, which was replaced; its results are kept.
    "fractals": "three tenths of the images mixed with fractals",
    "logit-norm": "logit normalisation, no label smoothing",
    "no-smoothing": "no label smoothing",
    "smoothing-0.1": "label smoothing 0.1: the preset",
    "no-look-ahead": "no look-ahead",
    "same-bias-rate": "one learning rate for all",
    "random-flip": "random flips (not alternating)",
    "no-shifts": "no shifts",
    "cutout-8": "cutout of 8 pixels",
    "one-size": "eight epochs, all at 32 pixels",
    "float32": "in float32",
}
CUES = {
    "goen-m": ("block2:max", "block3.conv1:mean_abs", "entropy", "energy"),
    "energy": ("energy",),
    "last block": ("block3:max",),
}


class NormalisedLogits(nn.Module):
    """A network whose logits are those that the loss with logit normalisation read."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network = network
        self.temperature = temperature

    def forward(self, images: Tensor) -> Outputs:
        outputs: Outputs = self.network(images)
        return Outputs(normalize(outputs.logits) / self.temperature, outputs.features)


def tables() -> dict[str, Table]:
    """What results/options has, for docs/results.md."""
    short = "The fast network at half its width, ten epochs."
    full = "Preset `fast-bf16` in full: the network at its width, twenty epochs."
    return {
        "options": _table("options", OUT, short),
        "options-full": _table("options-full", OUT / "full", full),
    }


def _table(name: str, folder: Path, length: str) -> Table:
    """A row for each option, with means over its seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for option in TITLES:
        # The second line of a file; the first describes where it comes from.
        files = sorted(folder.glob(f"{option}-*.jsonl"))
        texts = [file.read_text(encoding="utf-8") for file in files]
        if texts:
            found[option] = [json.loads(text.splitlines()[1]) for text in texts]

    def row(option: str) -> Row:
        runs = found[option]
        goen_m = [run["auroc"]["goen-m"] for run in runs]
        columns = [
            [run["accuracy"] for run in runs],
            *([values[name] for values in goen_m] for name in REAL[:2]),
            [fmean(values[name] for name in REAL) for values in goen_m],
            [fmean(values.values()) for values in goen_m],
            *(
                [fmean(run["auroc"][cues][name] for name in REAL) for run in runs]
                for cues in ("best", "energy", "last block")
            ),
        ]
        spread = len(runs) > 1
        cells = [
            Cell(fmean(values), spread=over_seeds(values).sd if spread else None)
            for values in columns
        ]
        return Row(TITLES[option], (Cell(len(runs), ".0f"), *cells))

    names = ("seeds", "accuracy", "SVHN*", "CIFAR-100*", "mean of three*", "mean of eight*")
    title = "Options of the training: accuracy, and AUROC by goen-m's cues on the selection sets"
    notes = (
        f"{length} SVHN's calibration images, the fifty "
        "classes of CIFAR-100 that the protocol leaves out, noise (in the means), and five kinds "
        "of OOD images made from ID images (in the mean of eight). The last three columns of AUROC "
        "are means of three: by the best of all cues and combinations in each network, chosen on "
        "the same images; by energy alone; by the distance in the last block.",
    )
    columns = (*names, "best cues*", "energy*", "last block*")
    return Table(name, title, columns, tuple(map(row, found)), notes)


def main(
    options: tyro.conf.Positional[tuple[str, ...]],
    seed: int = 42,
    full: bool = False,
    data_dir: Path | None = None,
    stages: Path = Path("runs/stages"),
) -> None:
    """Train, measure, print and keep.

    Args:
        options: names from OPTIONS.
        seed: of the trainings.
        full: train as long and as wide as the preset.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished trainings are kept.
    """
    p = selection_protocol(data_dir)
    out = OUT / "full" if full else OUT
    out.mkdir(parents=True, exist_ok=True)
    for option in options:
        if option not in OPTIONS:
            raise unknown("option", option, OPTIONS)
        if full and option == "one-size":
            raise SystemExit("one-size says how many epochs a short training has: not with --full.")
        preset = choose_preset("fast-bf16", p, "full", seed)
        network_config, training = preset.network, preset.training
        if not full:
            network_config = replace(network_config, width=WIDTH)
            training = replace(training, epochs=EPOCHS, sizes=((SMALL, 24),))
        network_config = replace(network_config, rotations=option == "rotation")
        changed = {"label_smoothing": SMOOTHING, **OPTIONS[option]}
        training = replace(training, **changed)  # type: ignore[arg-type]
        trained = train(
            network_config,
            training,
            p.train,
            p.calibration_id,
            Stages(stages),
            torch.device("cpu"),
        )
        every: nn.Module = EveryPooling(trained.network)
        if training.logit_norm:
            every = NormalisedLogits(every, training.logit_norm)
        network = FlipAveraged(every)
        labels = torch.from_numpy(p.test.labels)
        hits = extract(network, p.test).logits.argmax(dim=1) == labels
        cues = cues_of(network, p)
        found: dict[str, Any] = {
            "accuracy": round(hits.double().mean().item(), 4),
            "seconds": round(sum(float(str(row["seconds"])) for row in trained.epochs)),
            "auroc": {name: judged(cues, names) for name, names in CUES.items()},
        }
        tried = [(judged(cues, names), names) for names in candidates(cues)]
        values, best = max(tried, key=lambda pair: fmean(pair[0][name] for name in REAL))
        found["auroc"]["best"] = values
        found["best"] = best
        for name, values in found["auroc"].items():
            means = f"{fmean(values[s] for s in REAL):.4f} {fmean(values.values()):.4f}"
            print(option, seed, found["accuracy"], name, means, values, flush=True)
        about = {
            "option": option,
            "seed": seed,
            "network": network_config.to_json(),
            "training": training.to_json(),
            "versions": versions(),
            "hardware": hardware(),
        }
        text = json.dumps(about) + "\n" + json.dumps(found) + "\n"
        (out / f"{option}-{seed}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
