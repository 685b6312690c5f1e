"""The main job: train, fit, calibrate, decide, evaluate. Each stage is done once."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from goen.artifacts import load_tensors
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.detectors.density import Density
from goen.detectors.goen import Goen
from goen.errors import UsageError
from goen.extraction import stream
from goen.functional.conformal import raised, threshold
from goen.models import ResNet18
from goen.models.head import CalibrationHead
from goen.results import Stages, alone_in, summarised
from goen.scoring import Gate, score_cues
from goen.studies.evaluate import Subject, check_outputs, evaluate
from goen.studies.networks import read_story, train, write_story
from goen.studies.recipes import Fairness, Preset, Roles, recipe
from goen.training import HeadConfig, train_head


@dataclass(frozen=True)
class RunConfig:
    """What goen run does.

    Attributes:
        preset: digits, cpu, short or paper; auto takes digits for digits, cpu for CIFAR-10.
        protocol: full trains the whole schedule; paper stops early, with a patience of ten
            epochs, as the paper says.
        head: of the network.
        center_loss: weight of the centre loss.
        calibration: which OOD sets calibrate the head; all that the protocol offers, noise
            alone (the paper's NoSVHN), or none: no head, and no OOD image is used at all.
        false_alarm_rate: the share of ID images that may be flagged.
        seed: of the training.
    """

    preset: str = "auto"
    protocol: Fairness = "full"
    head: Literal["multi_scale", "single_scale", "concat"] = "multi_scale"
    center_loss: float = 0.0
    calibration: Literal["all", "noise", "none"] = "all"
    false_alarm_rate: float = 0.05
    seed: int = 42

    def __post_init__(self) -> None:
        if not self.center_loss >= 0:
            raise UsageError(
                f"The weight of the centre loss is at least 0, got {self.center_loss}."
            )

    def recipe(self, protocol: Protocol) -> Preset:
        """The preset with this run's choices put in."""
        preset = recipe(self.preset, protocol, self.protocol, self.seed)
        return Preset(
            replace(preset.network, head=self.head),
            replace(preset.training, center_loss=self.center_loss),
            preset.head,
        )


def run(config: RunConfig, protocol: Protocol, out: Path, stages: Stages | None = None) -> Gate:
    """Train, fit, calibrate, evaluate; the gate and everything about it lie in out.

    Stages already done with the same configuration and data, by whichever study, are taken as they
    are; an interrupted one goes on where it stopped. Writes gate/, results.jsonl,
    scores.safetensors, training.jsonl and, last, run.json: a folder without it holds no finished
    run.

    Args:
        config: what to do.
        protocol: the images.
        out: the run's folder.
        stages: finished work, shared between studies; in out if not given.
    """
    with alone_in(out):
        return _run(config, protocol, out, stages or Stages(out / "stages"))


def _run(config: RunConfig, protocol: Protocol, out: Path, stages: Stages) -> Gate:
    check_outputs(protocol, out)
    recipe = config.recipe(protocol)
    roles = Roles.of(protocol)
    threshold(np.zeros(len(roles.held_out)), config.false_alarm_rate)  # enough, or an error now
    trained = train(recipe.network, recipe.training, protocol.train, roles.calibration, stages)
    network = trained.network
    density, fitted = _fit(network, protocol.train, trained.key, stages)
    sets = {"train": protocol.train, "calibration": roles.calibration, "held-out": roles.held_out}
    calibrating = _calibrating(config, protocol)
    cues = {
        key: _cues(network, density, images, fitted, stages)
        for key, images in {
            "id": roles.calibration,
            "held-out": roles.held_out,
            **{f"ood:{name}": images for name, images in calibrating.items()},
        }.items()
    }
    head: CalibrationHead | None = None
    gaps: list[dict[str, Any]] = []
    if calibrating:
        head, gaps = _calibrate(cues, roles.calibration, calibrating, fitted, recipe.head, stages)
    held_out_scores, _ = score_cues(cues["held-out"], head)
    used = {**sets, **{f"calibration OOD {name}": s for name, s in calibrating.items()}}
    gate = Gate(
        network=network,
        scorer=Goen(density, head, cues["held-out"]),
        held_out_scores=raised(held_out_scores),
        false_alarm_rate=config.false_alarm_rate,
        classes=protocol.train.classes,
        image_size=protocol.train.image_shape[1:],
        facts={
            "recipe": asdict(recipe),
            "run": asdict(config),
            "splits": {
                role: {"name": s.name, "images": len(s), "fingerprint": s.fingerprint}
                for role, s in used.items()
            },
        },
    )
    subject = Subject(
        gate=gate,
        protocol=config.protocol,
        seed=config.seed,
        network=trained.key,
        fitted_on=trained.trained_on,
        calibration=roles.calibration,
        calibrating=calibrating,
    )
    summary = {
        "study": "run",
        "data": protocol.name,
        "config": asdict(config),
        "missing": dict(protocol.missing),
        "threshold": gate.threshold,
        "condition_number": density.whitening_.condition_number,
        "held_out": len(roles.held_out),
    }
    with summarised(out, summary):
        gate = evaluate(subject, protocol, roles.held_out, out)
        write_story(out / "training.jsonl", trained.story)
        write_story(out / "head.jsonl", gaps)
        summary["facts"] = dict(gate.facts)
    return gate


def _fit(network: ResNet18, train: ImageSet, backbone: str, stages: Stages) -> tuple[Density, Path]:
    def make(result: Path, work: Path) -> None:
        density, start = Density(), 0
        for outputs in stream(network, train):
            labels = torch.from_numpy(train.labels[start : start + len(outputs)])
            density.update(outputs, labels)
            start += len(outputs)
        save_file(density.state(), result / "density.safetensors")

    inputs = {"backbone": backbone, "train": train.fingerprint, "density": "z, ridge 1e-5"}
    folder = stages.run("density", inputs, make)
    return Density().load_state(load_tensors(folder / "density.safetensors")), folder


def _cues(
    network: ResNet18, density: Density, images: ImageSet, fitted: Path, stages: Stages
) -> Tensor:
    def make(result: Path, work: Path) -> None:
        rows = [density.cues(outputs) for outputs in stream(network, images)]
        save_file({"cues": torch.cat(rows)}, result / "cues.safetensors")

    inputs = {"density": fitted.name, "images": images.fingerprint}
    folder = stages.run("cues", inputs, make)
    return load_tensors(folder / "cues.safetensors")["cues"]


def _calibrating(config: RunConfig, protocol: Protocol) -> dict[str, ImageSet]:
    if config.calibration == "none":
        return {}
    if config.calibration == "noise":
        return {"noise": protocol.calibration["noise"]}
    return dict(protocol.calibration)


def _calibrate(
    cues: Mapping[str, Tensor],
    calibration: ImageSet,
    calibrating: Mapping[str, ImageSet],
    fitted: Path,
    config: HeadConfig,
    stages: Stages,
) -> tuple[CalibrationHead, list[dict[str, Any]]]:
    """The head, and its gap after each epoch."""

    def make(result: Path, work: Path) -> None:
        ood = {name: cues[f"ood:{name}"] for name in calibrating}
        head, gaps = train_head(cues["id"], ood, config)
        save_file(head.state_dict(), result / "head.safetensors")
        write_story(result / "head.jsonl", [{"epoch": i, "gap": g} for i, g in enumerate(gaps)])

    inputs = {
        "density": fitted.name,
        "head": asdict(config),
        "id": calibration.fingerprint,
        "ood": {name: images.fingerprint for name, images in calibrating.items()},
    }
    folder = stages.run("head", inputs, make)
    head = CalibrationHead()
    head.load_state_dict(load_tensors(folder / "head.safetensors"))
    return head.eval(), read_story(folder / "head.jsonl")
