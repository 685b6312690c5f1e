"""``goen run``: train, fit, calibrate, set the threshold, evaluate. Each stage is computed once."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from goen.checks import check_choice, check_number
from goen.data.imageset import ImageSet
from goen.data.kinds import ImageInputs
from goen.data.protocol import Protocol
from goen.detectors import Goen
from goen.detectors._gaussians import ClassGaussians
from goen.detectors.calibration_head import CalibrationHead, HeadConfig, load_head, train_head
from goen.extraction import stream
from goen.functional.conformal import threshold
from goen.gate import Gate, HeldOut, measure_rounding
from goen.models import Backbone, Representation
from goen.models.placement import find_device
from goen.runs.artifacts import reading_stage
from goen.runs.manifest import JsonObject
from goen.runs.stages import Stages, alone_in, summarised
from goen.runs.tensors import read_tensors
from goen.studies.evaluate import GateStudy, check_outputs, evaluate_gate
from goen.studies.methods import METHODS
from goen.studies.networks import EpochRecord, Trained, read_epochs, train, write_epochs
from goen.studies.presets import Budget, Preset, choose_preset

CalibrationOod = Literal["all", "noise", "none"]


@dataclass(frozen=True)
class RunConfig:
    """What goen run does.

    Attributes:
        preset: network and training settings: digits (width 8, half a minute), cpu (width 16, 36
            epochs), short (the same, 12 epochs), fast (another network, made for short trainings of
            sixteen epochs), fast-bf16 (the same in bfloat16, 20 epochs: for processors with
            instructions for it), wide-bf16 (short at width 64 in bfloat16) or paper (width 64, 40
            epochs, for a GPU); auto takes digits for the digits and cpu for CIFAR-10.
        budget: full trains for the full schedule; paper stops early with a patience of ten epochs,
            as in the paper.
        representation: the features of the detector: two scales (layer2 and layer4 of the
            ResNet-18) projected together, the last alone, the two concatenated, or plain: those of
            an ordinary network, the last as the classifier reads it. preset: plain for fast and
            fast-bf16, two scales projected together for the others.
        center_loss: weight of the center loss; 0 switches it off.
        calibration_ood: OOD images that train the calibration head: all (SVHN and noise; for digits
            photographs and noise), noise alone, or none: then the distance is the score.
        false_alarm_rate: upper bound on the probability that an ID image is flagged.
        seed: random seed of training and calibration.
        device: where networks train and run: cpu, cuda (cuda:1 is the second GPU), or auto: CUDA if
            it is available.
    """

    preset: str = "auto"
    budget: Budget = "full"
    representation: Representation | Literal["preset"] = "preset"
    center_loss: float = 0.0
    calibration_ood: CalibrationOod = "all"
    false_alarm_rate: float = 0.05
    seed: int = 42
    device: str = "auto"

    def __post_init__(self) -> None:
        representations = ("preset", *get_args(Representation))
        check_choice("budget", self.budget, get_args(Budget))
        check_choice("representation", self.representation, representations)
        check_choice("calibration_ood", self.calibration_ood, get_args(CalibrationOod))
        check_number("center_loss", self.center_loss, at_least=0)

    def preset_for(self, protocol: Protocol) -> Preset:
        """The preset with the choices of this run."""
        preset = choose_preset(self.preset, protocol, self.budget, self.seed)
        network = preset.network
        if self.representation != "preset":
            network = replace(network, representation=self.representation)
        return Preset(network, replace(preset.training, center_loss=self.center_loss), preset.head)


def run(
    config: RunConfig, protocol: Protocol, out: Path | str, stages: Stages | None = None
) -> Gate:
    """Train, fit, calibrate and evaluate a gate.

    Stages that any study has finished with the same configuration and data are reused; an
    interrupted one resumes where it stopped. Writes gate/, results.jsonl,
    scores.safetensors, training.jsonl and, last, run.json: a folder without it holds no finished
    run.

    Args:
        config: what to do.
        protocol: the images.
        out: the run's folder.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
    """
    out = Path(out)
    with alone_in(out):
        return _run(config, protocol, out, stages or Stages.beside(out))


def _run(config: RunConfig, protocol: Protocol, out: Path, stages: Stages) -> Gate:
    check_outputs(out)
    device = find_device(config.device)
    preset = config.preset_for(protocol)
    held_out, calibration = protocol.held_out, protocol.calibration_id
    threshold(np.zeros(len(held_out)), config.false_alarm_rate)  # too few: an error before training
    trained = train(preset.network, preset.training, protocol.train, calibration, stages, device)
    fitted = _fit(trained, protocol.train, stages)
    ood = _ood_for_calibration(config, protocol)
    head, gaps = _train_head(fitted, calibration, ood, preset.head, stages)
    cues = _cues(fitted, held_out, stages)
    detector = fitted.detector.with_head(head, cues)
    used = {"train": protocol.train, "calibration": calibration, "held-out": held_out}
    used |= {f"calibration OOD {name}": images for name, images in ood.items()}
    rounding = measure_rounding(trained.network, detector, held_out)
    gate = Gate(
        network=trained.network,
        detector=detector,
        held_out=HeldOut.from_cues(detector, cues, labels=None, rounding=rounding),
        false_alarm_rate=config.false_alarm_rate,
        classes=protocol.train.classes,
        inputs=ImageInputs(*protocol.train.image_shape),
        facts={
            "recipe": preset.to_json(),
            "run": asdict(config),
            "splits": {role: images.to_json() for role, images in used.items()},
        },
    )
    study = GateStudy(
        gate=gate,
        budget=config.budget,
        seed=config.seed,
        network=trained.key,
        trained_on=trained.trained_on,
        calibrated_on=(calibration, *ood.values()) if ood else (),
        held_out=held_out,
        ood_seen=tuple(ood),
    )
    evaluation = evaluate_gate(study, protocol, stages)
    summary: JsonObject = {
        "study": "run",
        "data": protocol.name,
        "config": asdict(config),
        "titles": {key: [METHODS[key].title, ""] for key in study.detectors},
        "uses_ood": [key for key in study.detectors if ood and METHODS[key].uses_ood],
        "calibration_ood": list(protocol.calibration_ood),
        "missing": dict(protocol.missing),
        "threshold": gate.threshold,
        "condition_number": detector.gaussians.whitening_.condition_number,
        "held_out": len(held_out),
        "facts": evaluation.gate.facts,
    }
    with summarised(out, summary):
        evaluation.write(out)
        write_epochs(out / "training.jsonl", trained.epochs)
        write_epochs(out / "head.jsonl", gaps)
    return evaluation.gate


@dataclass(frozen=True, eq=False)
class _FittedGaussians:
    """A trained network, the Gaussians fitted on its features, and the stage that holds them."""

    network: Backbone
    detector: Goen
    stage: Path


def _fit(trained: Trained, images: ImageSet, stages: Stages) -> _FittedGaussians:
    def make(result: Path, work: Path) -> None:
        detector, start = Goen(feature="z"), 0
        for outputs in stream(trained.network, images):
            labels = torch.from_numpy(images.labels[start : start + len(outputs)])
            detector.update(outputs, labels)
            start += len(outputs)
        save_file(detector.gaussians.state(), result / "density.safetensors")

    inputs: JsonObject = {
        "backbone": trained.key,
        "train": images.fingerprint,
        "density": "z, ridge 1e-5",
    }
    folder = stages.run("density", inputs, make)
    detector = Goen(feature="z")
    with reading_stage(folder):
        tensors = read_tensors(folder / "density.safetensors")
        detector.gaussians_ = ClassGaussians("z").load_state(tensors)
    return _FittedGaussians(trained.network, detector, folder)


def _cues(fitted: _FittedGaussians, images: ImageSet, stages: Stages) -> Tensor:
    def make(result: Path, work: Path) -> None:
        rows = [fitted.detector.cues(outputs) for outputs in stream(fitted.network, images)]
        save_file({"cues": torch.cat(rows)}, result / "cues.safetensors")

    inputs: JsonObject = {"density": fitted.stage.name, "images": images.fingerprint}
    folder = stages.run("cues", inputs, make, about=images.name)
    with reading_stage(folder):
        tensors = read_tensors(folder / "cues.safetensors")
        return tensors.of_shape(
            "cues", (len(images), len(fitted.detector.cue_names)), torch.float64
        )


def _ood_for_calibration(config: RunConfig, protocol: Protocol) -> dict[str, ImageSet]:
    if config.calibration_ood == "none":
        return {}
    if config.calibration_ood == "noise":
        return {"noise": protocol.calibration_ood["noise"]}
    return dict(protocol.calibration_ood)


def _train_head(
    fitted: _FittedGaussians,
    id_images: ImageSet,
    ood: Mapping[str, ImageSet],
    config: HeadConfig,
    stages: Stages,
) -> tuple[CalibrationHead | None, list[EpochRecord]]:
    """The head, and its gap after each epoch; no head without OOD images."""
    if not ood:
        return None, []

    def make(result: Path, work: Path) -> None:
        ood_cues = {name: _cues(fitted, images, stages) for name, images in ood.items()}
        head, gaps = train_head(_cues(fitted, id_images, stages), ood_cues, config)
        save_file(head.state_dict(), result / "head.safetensors")
        write_epochs(result / "head.jsonl", [{"epoch": i, "gap": g} for i, g in enumerate(gaps)])

    inputs: JsonObject = {
        "density": fitted.stage.name,
        "head": asdict(config),
        "id": id_images.fingerprint,
        "ood": {name: images.fingerprint for name, images in ood.items()},
    }
    folder = stages.run("head", inputs, make)
    with reading_stage(folder):
        head = load_head(read_tensors(folder / "head.safetensors"))
        return head, read_epochs(folder / "head.jsonl")
