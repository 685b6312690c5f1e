"""The bundled gate.

    python recipes/gate.py --data-dir DATA        (the network of recipes/bench.sh 42)

Fits goen-m to the network of seed 42 without any OOD image, measures it on every set, and puts gate
and table into src/goen/gate/bundled/cifar10-w16. `goen check` compares the two again, anywhere.
"""

import shutil
import tempfile
from pathlib import Path

import torch
import tyro
from sets import UNTOUCHED

from goen.data import protocol
from goen.data.kinds import ImageInputs
from goen.detectors import GoenM
from goen.gate import Gate, HeldOut, measure_rounding
from goen.gate.published import measure_gate, publish
from goen.models.flip_averaging import FlipAveraged
from goen.runs.stages import Stages
from goen.studies.experiment import Experiment
from goen.studies.methods import labels_of

FOLDER = Path(__file__).parents[1] / "src" / "goen" / "gate" / "bundled" / "cifar10-w16"


def main(data_dir: Path | None = None, stages: Path = Path("runs/stages")) -> None:
    """Fit, measure, put in place.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished work is kept.
    """
    torch.set_num_threads(1)  # as recipes/bench.sh: the number is part of the network's key
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=UNTOUCHED)
    experiment = Experiment("cpu", "full", 42, p, Stages(stages))
    (trained,) = experiment.members("goen")
    scales = trained.network.two_scales
    sets = {"train": p.train, "calibration": p.calibration_id, "held-out": p.held_out}
    train, calibration, held_out = (
        experiment.outputs("goen", images, "flip_averaged")[0].keep(scales)
        for images in sets.values()
    )
    # Not Gate.fit, which splits the held-out images itself: the calibration images were used to
    # select goen-m, so none of them may set the threshold.
    detector = GoenM(scales).fit(train, labels_of(p.train.labels), held_out=calibration)
    labels = held_out.logits.argmax(dim=1)
    network = FlipAveraged(trained.network)
    rounding = measure_rounding(network, detector, p.held_out)
    cues = detector.cues(held_out)
    gate = Gate(
        network=network,
        detector=detector,
        held_out=HeldOut.from_cues(detector, cues, labels=labels, rounding=rounding),
        false_alarm_rate=0.05,
        classes=p.train.classes,
        inputs=ImageInputs(*p.train.image_shape),
        facts={
            "recipe": {
                "network": experiment.preset.network.to_json(),
                "training": experiment.preset.training.to_json(),
            },
            "network": trained.key,
            "splits": {role: images.to_json() for role, images in sets.items()},
        },
    )
    with tempfile.TemporaryDirectory() as temporary:
        gate.save(Path(temporary) / "gate")
        FOLDER.mkdir(parents=True, exist_ok=True)
        for file in (Path(temporary) / "gate").iterdir():
            shutil.copy(file, FOLDER / file.name)  # the card beside it stays
    for row in (rows := measure_gate(gate, p)):
        print(f"{row.dataset:15} {row.metric:20} {row.value:.4f}")
    publish(rows, FOLDER)


if __name__ == "__main__":
    tyro.cli(main)
