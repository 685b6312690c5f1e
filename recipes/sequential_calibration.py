"""OOD kinds that arrive one after the other: what the calibration head keeps and loses.

    python recipes/sequential_calibration.py --seed 42 --data-dir DATA

GOEN's network and distance stay; the head is calibrated with SVHN, then with places, textures and
noise, by three strategies. Alone: the head's training goes on with the new kind and nothing else.
Replay: it goes on with the new kind and 300 kept images of each earlier kind. Joint: a new head for
all kinds so far, with all their images. After each kind the AUROC on other images of every kind,
and on sets of which no image calibrates. Writes results/cifar10/sequential-calibration-SEED.jsonl,
a line per strategy, stage and set, and the forgetting of each kind (Chaudhry et al. 2018,
"Riemannian Walk for Incremental Learning").
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import tyro
from torch import Tensor

from goen.data import protocol
from goen.detectors.calibration_head import CalibrationHead, HeadConfig, train_head
from goen.io.files import whole_file
from goen.io.stages import Stages
from goen.metrics import ood_metrics
from goen.studies.experiment import AS_PRESET, Experiment
from goen.studies.methods import METHODS
from goen.studies.rows import evaluation_sets

KINDS = ("svhn", "places", "textures", "noise")
UNSEEN = ("cifar100", "tiny-imagenet", "mnist")
KEPT = 300
OUT = Path(__file__).parents[1] / "results" / "cifar10"


def sequences(
    id_cues: Tensor, kinds: Mapping[str, Tensor], config: HeadConfig, kept: int = KEPT
) -> dict[str, list[CalibrationHead]]:
    """The head after each kind, by strategy.

    Args:
        id_cues: ``(N, 3)``.
        kinds: the cues of each kind ``(M, 3)``, in the order in which they arrive.
        config: how a head is trained, for every stage.
        kept: images of each earlier kind that are trained with again; the first of its cues.
    """
    few = {name: cues[:kept] for name, cues in kinds.items()}
    found: dict[str, list[CalibrationHead]] = {"alone": [], "replay": [], "joint": []}
    for number, name in enumerate(kinds):
        earlier = list(kinds)[:number]
        sets = {
            "alone": {name: kinds[name]},
            "replay": {**{other: few[other] for other in earlier}, name: kinds[name]},
            "joint": {other: kinds[other] for other in (*earlier, name)},
        }
        for strategy, heads in found.items():
            start = heads[-1] if heads and strategy != "joint" else None
            heads.append(train_head(id_cues, sets[strategy], config, start=start)[0])
    return found


def forgetting(aurocs: Sequence[float], arrived: int) -> float:
    """The best AUROC on a kind since it arrived, but before the last stage, less that at the end.

    Args:
        aurocs: after each stage.
        arrived: the stage of the kind, from 0; not the last.

    Example:
        >>> round(forgetting([0.5, 0.9, 0.95, 0.7], arrived=1), 2)
        0.25
    """
    return max(aurocs[arrived:-1]) - aurocs[-1]


def measured(
    heads: Mapping[str, Sequence[CalibrationHead]], cues: Mapping[str, Tensor], kinds: Sequence[str]
) -> list[dict[str, object]]:
    """A line for every strategy, stage and set, and the forgetting of each kind but the last.

    Args:
        heads: after each stage, by strategy.
        cues: of the ID test images (``test``) and of every OOD set.
        kinds: in the order in which they arrived.
    """
    lines: list[dict[str, object]] = []
    for strategy, stages in heads.items():
        by_set: dict[str, list[float]] = {}
        for stage, head in enumerate(stages):
            with torch.no_grad():
                scores = {name: head(rows.float()).double().numpy() for name, rows in cues.items()}
            for name in (name for name in cues if name != "test"):
                m = ood_metrics(scores["test"], scores[name])
                by_set.setdefault(name, []).append(m.auroc)
                lines.append(
                    {
                        "strategy": strategy,
                        "after": kinds[stage],
                        "dataset": name,
                        "seen_in_calibration": name in kinds[: stage + 1],
                        "metric": "auroc",
                        "value": m.auroc,
                        "low": m.auroc_low,
                        "high": m.auroc_high,
                    }
                )
        for number, name in enumerate(kinds[:-1]):
            value = forgetting(by_set[name], number)
            end = {"strategy": strategy, "after": kinds[-1], "dataset": name}
            lost = {"seen_in_calibration": True, "metric": "forgetting", "value": value}
            lines.append({**end, **lost})
    return lines


def main(
    seed: int = 42,
    preset: str = "short",
    data_dir: Path | None = None,
    stages: Path = Path("runs/stages"),
) -> None:
    """Train the heads, print and write.

    Args:
        seed: of the network and of the heads.
        preset: of the network, which is that of goen run.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        stages: where finished work is kept.
    """
    torch.set_num_threads(1)  # the number is part of the network's key
    extra = ("tiny-imagenet", "mnist")
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=extra, calibration=KINDS)
    if p.missing:
        raise SystemExit(f"This needs every set; missing: {', '.join(p.missing)}.")
    experiment = Experiment(preset, "full", seed, p, Stages(stages))
    distance = experiment.fit(replace(METHODS["goen_distance"], network=AS_PRESET)).detector
    cues, calibration = (
        {name: distance.cues(experiment.outputs(AS_PRESET, s)[0]) for name, s in sets.items()}
        for sets in (evaluation_sets(p), {"id": p.calibration_id, **p.calibration_ood})
    )
    kinds = {name: calibration[name] for name in KINDS}
    heads = sequences(calibration["id"], kinds, experiment.preset.head)
    lines = measured(heads, {name: cues[name] for name in ("test", *KINDS, *UNSEEN)}, KINDS)
    origin = {"seed": seed, "preset": preset, "network": experiment.members(AS_PRESET)[0].key}
    for line in lines:
        kind = "" if line["seen_in_calibration"] else "unseen"
        print(*(f"{line[n]!s:14}" for n in ("strategy", "after", "dataset", "metric")), end="")
        print(f"{line['value']:8.4f} {kind}")
    with whole_file(OUT / f"sequential-calibration-{seed}.jsonl", overwrite=True) as temporary:
        text = "".join(json.dumps({**line, **origin}) + "\n" for line in lines)
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
