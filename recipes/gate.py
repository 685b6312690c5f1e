"""The gate in the box.

    python recipes/gate.py --data-dir DATA        (the network of recipes/bench.sh 42)

Fits goen-m to the network of seed 42 without any OOD image, measures it on every set, and puts gate
and table into src/goen/gates/cifar10-w16. `goen check` compares the two again, anywhere.
"""

import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import tyro

from goen.check import measure, publish
from goen.data import protocol
from goen.results import Stages
from goen.scoring import Gate
from goen.studies.methods import SCALES
from goen.studies.panel import Panel

FOLDER = Path(__file__).parents[1] / "src" / "goen" / "gates" / "cifar10-w16"
EXTRA = ("tiny-imagenet", "mnist", "textures", "places")


def main(data_dir: Path | None = None, stages: Path = Path("runs/stages")) -> None:
    """Fit, measure, put in place.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished work is kept.
    """
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    panel = Panel("cpu", "full", 42, p, Stages(stages))
    (trained,) = panel.members("goen")
    gate = Gate.fit(trained.network, p.train, p.validation, layers=SCALES, mirror=True)
    recipe = {"network": asdict(panel.preset.network), "training": asdict(panel.preset.training)}
    facts = {"recipe": recipe, "network": trained.key}
    gate = replace(gate, facts={**gate.facts, **facts})
    with tempfile.TemporaryDirectory() as temporary:
        gate.save(Path(temporary) / "gate")
        FOLDER.mkdir(parents=True, exist_ok=True)
        for file in (Path(temporary) / "gate").iterdir():
            shutil.copy(file, FOLDER / file.name)  # the card beside it stays
    for row in (rows := measure(gate, p)):
        print(f"{row.dataset:15} {row.metric:20} {row.value:.4f}")
    publish(rows, FOLDER)


if __name__ == "__main__":
    tyro.cli(main)
