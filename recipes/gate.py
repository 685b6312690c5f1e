"""The gate in the box.

    python recipes/gate.py --data-dir DATA        (the network of recipes/bench.sh 42)

Fits goen-m to the network of seed 42 without any OOD image, measures it on every set, and puts gate
and table into src/goen/gate/bundled/cifar10-w16. `goen check` compares the two again, anywhere.
"""

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
import tyro
from sets import UNTOUCHED

from goen.data import protocol
from goen.detectors.goen_m import Monotone
from goen.functional.conformal import raised
from goen.gate import Gate
from goen.gate.published import measure_gate, publish
from goen.models.flip_averaging import Mirrored
from goen.runs.stages import Stages
from goen.studies.experiment import Panel
from goen.studies.methods import SCALES, labels_of

FOLDER = Path(__file__).parents[1] / "src" / "goen" / "gates" / "cifar10-w16"


def main(data_dir: Path | None = None, stages: Path = Path("runs/stages")) -> None:
    """Fit, measure, put in place.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished work is kept.
    """
    torch.set_num_threads(1)  # as recipes/bench.sh: the number is part of the network's name
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=UNTOUCHED)
    panel = Panel("cpu", "full", 42, p, Stages(stages))
    (trained,) = panel.members("goen")
    sets = {
        "train": p.train,
        "calibration": panel.roles.calibration,
        "held-out": panel.roles.held_out,
    }
    train, calibration, held_out = (
        panel.outputs("goen", images, "mirrored")[0].keep(SCALES) for images in sets.values()
    )
    # Not Gate.fit, which parts the held-out images by itself: the calibration images chose goen-m,
    # and none of them may give the threshold.
    scorer = Monotone(SCALES).update(train, labels_of(p.train.labels))
    scorer.calibrate(scorer.cues(calibration))
    cues = scorer.cues(held_out)
    gate = Gate(
        network=Mirrored(trained.network),
        scorer=scorer,
        held_out_scores=raised(scorer.judge(cues)[0]),
        false_alarm_rate=0.05,
        classes=p.train.classes,
        image_size=p.train.image_shape[1:],
        facts={
            "recipe": {
                "network": asdict(panel.preset.network),
                "training": asdict(panel.preset.training),
            },
            "network": trained.key,
            "splits": {
                role: {"name": s.name, "images": len(s), "fingerprint": s.fingerprint}
                for role, s in sets.items()
            },
        },
        held_out_labels=held_out.logits.argmax(dim=1).numpy(),
        held_out_cues=cues.numpy(),
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
