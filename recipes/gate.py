"""The bundled gates, one network of the larger one alone, and the same of another preset.

    python recipes/gate.py cifar10-w16 --data-dir DATA        (its network: recipes/bench.sh 42)
    python recipes/gate.py cifar10-fast --data-dir DATA       (trains it: an hour on one core)
    python recipes/gate.py cifar10-ensemble --data-dir DATA   (the same, two networks)
    python recipes/gate.py cifar10-ensemble-bf16 --seed 123 --data-dir DATA

Fits goen-m to the network without any OOD image and measures it on every set. With --seed 42 a
gate that is bundled and its table go into src/goen/gate/bundled, where `goen check` compares the
two again, anywhere. Else only the table is kept, in results/gates/NAME-SEED, for the spread over
trainings.
"""

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
import tyro
from sets import EXTRA

from goen.data import protocol
from goen.extraction import extract
from goen.io.stages import Stages
from goen.models.ensemble import LogitEnsemble
from goen.models.flip_averaging import FlipAveraged
from goen.models.half_precision import round_to_half
from goen.studies.methods import goen_m_for, labels_of
from goen.studies.networks import train
from goen.studies.presets import choose_preset
from goen.studies.published import measure_gate, publish
from goen.studies.run import gate_of

ROOT = Path(__file__).parents[1]
BUNDLED = ROOT / "src" / "goen" / "gate" / "bundled"
OTHER_SEEDS = ROOT / "results" / "gates"
SEED = 42
# Three networks make three ensembles of two: each network is in two of them.
SEEDS = (42, 123, 2024)
Name = Literal["cifar10-w16", "cifar10-fast", "cifar10-ensemble", "cifar10-ensemble-bf16"]


@dataclass(frozen=True)
class Recipe:
    """What a gate is made of.

    Attributes:
        preset: of the training.
        rows: of goen-m's bank.
        members: networks; with more than one their weights are rounded to half precision.
        bundled: whether the gate of seed 42 comes with the package.
    """

    preset: str
    rows: int
    members: int = 1
    bundled: bool = True


# The rows keep the others below 16 MB.
RECIPES = {
    "cifar10-w16": Recipe("cpu", 5_000),
    "cifar10-fast": Recipe("fast", 3_000, bundled=False),
    "cifar10-ensemble": Recipe("fast", 1_900, members=2),
    "cifar10-ensemble-bf16": Recipe("fast-bf16", 1_900, members=2, bundled=False),
}
assert tuple(RECIPES) == get_args(Name)


def member_seeds(seed: int, members: int) -> tuple[int, ...]:
    """The seeds of the networks: this one, and those after it."""
    if members == 1:
        return (seed,)
    if seed not in SEEDS:
        raise SystemExit(f"An ensemble begins with one of the seeds {SEEDS}, got {seed}.")
    start = SEEDS.index(seed)
    return tuple(SEEDS[(start + i) % len(SEEDS)] for i in range(members))


def main(
    name: tyro.conf.Positional[Name],
    seed: int = SEED,
    data_dir: Path | None = None,
    stages: Path = Path("runs/stages"),
) -> None:
    """Fit, measure, put in place.

    Args:
        name: of the gate.
        seed: of the training, of an ensemble's first; the bundled gates have 42.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished trainings are kept.
    """
    torch.set_num_threads(1)  # the number is part of a training's key
    recipe = RECIPES[name]
    seeds = member_seeds(seed, recipe.members)
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    preset = choose_preset(recipe.preset, p, "full", seed)
    trained = [
        train(
            preset.network,
            replace(preset.training, seed=member),
            p.train,
            p.calibration_id,
            Stages(stages),
            torch.device("cpu"),
        )
        for member in seeds
    ]
    networks = [each.network for each in trained]
    if recipe.members > 1:
        for each in networks:
            round_to_half(each)
    network = FlipAveraged(networks[0] if len(networks) == 1 else LogitEnsemble(networks)).eval()
    sets = {"train": p.train, "calibration": p.calibration_id, "held_out": p.held_out}
    detector = goen_m_for(networks[0], recipe.rows)
    assert detector.layers is not None
    fitted_on, calibration, held_out = (
        extract(network, images).keep(detector.layers) for images in sets.values()
    )
    # Not Gate.fit, which splits the held-out images itself: the calibration images were used to
    # select goen-m, so none of them may set the threshold.
    detector.fit(fitted_on, labels_of(p.train.labels), held_out=calibration)
    metadata = {
        "recipe": {
            "network": preset.network.to_json(),
            "training": preset.training.to_json(),
            "seeds": list(seeds),
        },
        "network": "+".join(each.key for each in trained),
    }
    gate = gate_of(network, detector, sets, held_out, 0.05, metadata)
    bundled = recipe.bundled and seed == SEED
    folder = BUNDLED / name if bundled else OTHER_SEEDS / f"{name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if bundled:
        with tempfile.TemporaryDirectory() as temporary:
            gate.save(Path(temporary) / "gate")
            for file in (Path(temporary) / "gate").iterdir():
                shutil.copy(file, folder / file.name)  # the card beside it stays
    for row in (rows := measure_gate(gate, p)):
        print(f"{row.dataset:15} {row.metric:20} {row.value:.4f}")
    publish(rows, folder)


if __name__ == "__main__":
    tyro.cli(main)
