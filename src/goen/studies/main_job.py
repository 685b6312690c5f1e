"""The main job: train, fit, calibrate, decide, evaluate. Each stage is done once."""

import json
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
from goen.errors import UsageError, unknown
from goen.extract import stream
from goen.files import whole_file
from goen.functional.conformal import threshold
from goen.models import NetworkConfig, ResNet18
from goen.models.head import CalibrationHead
from goen.progress import note
from goen.results import Stages, alone_in
from goen.scoring import Gate, score_cues
from goen.studies.evaluate import Subject, evaluate
from goen.training import EpochRow, HeadConfig, TrainingConfig, train_backbone, train_head

_VALIDATION_SEED = 7


@dataclass(frozen=True)
class Preset:
    """A recipe that fits a machine and a data set."""

    network: NetworkConfig
    training: TrainingConfig
    head: HeadConfig


PRESETS: Mapping[str, Preset] = {
    # Half a minute on two cores. Digits are not mirrored: a mirrored 2 is no 2.
    "digits": Preset(
        NetworkConfig(num_classes=7, width=8, mean=(0.3, 0.3, 0.3), std=(0.35, 0.35, 0.35)),
        TrainingConfig(epochs=15, batch_size=64, flip="never", padding=3, schedule="one_cycle"),
        HeadConfig(batch_size=16),  # 144 ID images: smaller batches for enough steps
    ),
    # Two cores, at most 45 minutes: narrow, smaller images first, one cycle.
    "cpu": Preset(
        network=NetworkConfig(width=16),
        training=TrainingConfig(
            epochs=22,
            learning_rate=0.15,
            schedule="one_cycle",
            padding=3,
            border="reflect",
            flip="alternating",
            sizes=((8, 20), (6, 26)),
        ),
        head=HeadConfig(),
    ),
    # As written; for a GPU.
    "paper": Preset(NetworkConfig(width=64), TrainingConfig(epochs=40), HeadConfig()),
}


@dataclass(frozen=True)
class RunConfig:
    """What goen run does.

    Attributes:
        preset: the recipe: digits, cpu or paper; auto takes digits for digits, cpu for CIFAR-10.
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
    protocol: Literal["full", "paper"] = "full"
    head: Literal["multi_scale", "single_scale", "concat"] = "multi_scale"
    center_loss: float = 0.0
    calibration: Literal["all", "noise", "none"] = "all"
    false_alarm_rate: float = 0.05
    seed: int = 42

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"A seed lies in 0..{2**32 - 1}, got {self.seed}.")
        if not self.center_loss >= 0:
            raise UsageError(
                f"The weight of the centre loss is at least 0, got {self.center_loss}."
            )

    def recipe(self, protocol: Protocol) -> Preset:
        """The preset with this run's choices put in."""
        name = self.preset
        if name == "auto":
            name = "digits" if protocol.name == "digits" else "cpu"
        if name not in PRESETS:
            raise unknown("preset", name, ["auto", *PRESETS])
        preset = PRESETS[name]
        classes = len(protocol.train.classes)
        network = replace(preset.network, num_classes=classes, head=self.head)
        patience = 10 if self.protocol == "paper" else None
        training = replace(
            preset.training, seed=self.seed, center_loss=self.center_loss, patience=patience
        )
        return Preset(network, training, replace(preset.head, seed=self.seed))


@dataclass(frozen=True)
class Roles:
    """Who does what: the protocol's validation images, parted once more.

    calibration stops training early and is the head's ID side; held_out only ever gives the
    threshold.
    """

    calibration: ImageSet
    held_out: ImageSet

    @staticmethod
    def of(protocol: Protocol) -> "Roles":
        kept = len(protocol.validation) * 2 // 5
        sizes = {"calibration": len(protocol.validation) - kept, "held-out": kept}
        parts = protocol.validation.split(sizes, _VALIDATION_SEED)
        return Roles(parts["calibration"], parts["held-out"])


def run(config: RunConfig, protocol: Protocol, out: Path) -> Gate:
    """Train, fit, calibrate, evaluate; the gate and everything about it lie in out.

    Stages already done under out with the same configuration and data are taken as they are; an
    interrupted one goes on where it stopped. Writes gate/, results.jsonl, scores.safetensors,
    training.jsonl and, last, run.json: a folder without it holds no finished run.
    """
    with alone_in(out):
        return _run(config, protocol, out)


def _run(config: RunConfig, protocol: Protocol, out: Path) -> Gate:
    recipe = config.recipe(protocol)
    stages = Stages(out / "stages")
    roles = Roles.of(protocol)
    threshold(np.zeros(len(roles.held_out)), config.false_alarm_rate)  # enough, or an error now
    network, story, backbone = _train(recipe, protocol, roles, stages)
    density, fitted = _fit(network, protocol.train, backbone, stages)
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
    head = None
    if calibrating:
        head = _calibrate(cues, roles.calibration, calibrating, fitted, recipe.head, stages)
    held_out_scores, _ = score_cues(cues["held-out"], head)
    used = {**sets, **{f"calibration OOD {name}": s for name, s in calibrating.items()}}
    gate = Gate(
        network=network,
        density=density,
        head=head,
        held_out_scores=held_out_scores.numpy(),
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
    stopped_on = () if recipe.training.patience is None else (roles.calibration,)
    subject = Subject(
        gate=gate,
        protocol=config.protocol,
        seed=config.seed,
        network=backbone.name,
        fitted_on=(protocol.train, *stopped_on),
        calibration=roles.calibration,
        calibrating=calibrating,
    )
    # Only now, when new results are about to be written: until then an earlier run stays whole, and
    # from here on nothing of it may be mixed with this one.
    for name in ("run.json", "report.html"):
        (out / name).unlink(missing_ok=True)
    gate = evaluate(subject, protocol, roles.held_out, out)
    _write_story(out / "training.jsonl", story)
    missing = dict(protocol.missing)
    summary = {
        "data": protocol.name,
        "config": asdict(config),
        "missing": missing,
        "facts": dict(gate.facts),
        "threshold": gate.threshold,
        "condition_number": density.whitening_.condition_number,
        "held_out": len(roles.held_out),
    }
    with whole_file(out / "run.json") as temporary:
        text = json.dumps(summary, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    return gate


def _train(
    recipe: Preset, protocol: Protocol, roles: Roles, stages: Stages
) -> tuple[ResNet18, list[dict[str, Any]], Path]:
    inputs = {
        "network": asdict(recipe.network),
        "training": asdict(recipe.training),
        "train": protocol.train.fingerprint,
        "validation": roles.calibration.fingerprint,
        "device": _device(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }

    def make(result: Path, work: Path) -> None:
        network, rows = train_backbone(
            recipe.network,
            recipe.training,
            protocol.train,
            roles.calibration,
            checkpoint=work / "checkpoint.safetensors",
            device=_device(),
            on_epoch=_say,
        )
        plain = {k: v.cpu().contiguous() for k, v in network.state_dict().items()}
        save_file(plain, result / "network.safetensors")
        _write_story(result / "training.jsonl", [asdict(row) for row in rows])

    folder = stages.run("backbone", inputs, make)
    network = ResNet18(recipe.network)
    network.load_state_dict(load_tensors(folder / "network.safetensors"))
    story = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
    return network.to(_device()).eval(), story, folder


def _say(row: EpochRow) -> None:
    note(
        f"epoch {row.epoch + 1:>3}  loss {row.loss:.3f}  accuracy {row.accuracy:.1%}  "
        f"validation {row.validation_accuracy:.2%}  {row.seconds:.1f} s"
    )


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _fit(
    network: ResNet18, train: ImageSet, backbone: Path, stages: Stages
) -> tuple[Density, Path]:
    def make(result: Path, work: Path) -> None:
        density, start = Density(), 0
        for outputs in stream(network, train):
            labels = torch.from_numpy(train.labels[start : start + len(outputs)])
            density.update(outputs, labels)
            start += len(outputs)
        save_file(density.state(), result / "density.safetensors")

    inputs = {"backbone": backbone.name, "train": train.fingerprint, "density": "z, ridge 1e-5"}
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
) -> CalibrationHead:

    def make(result: Path, work: Path) -> None:
        ood = {name: cues[f"ood:{name}"] for name in calibrating}
        head, gaps = train_head(cues["id"], ood, config)
        save_file(head.state_dict(), result / "head.safetensors")
        _write_story(result / "head.jsonl", [{"epoch": i, "gap": g} for i, g in enumerate(gaps)])

    inputs = {
        "density": fitted.name,
        "head": asdict(config),
        "id": calibration.fingerprint,
        "ood": {name: images.fingerprint for name, images in calibrating.items()},
    }
    folder = stages.run("head", inputs, make)
    head = CalibrationHead()
    head.load_state_dict(load_tensors(folder / "head.safetensors"))
    return head.eval()


def _write_story(path: Path, rows: list[dict[str, Any]]) -> None:
    with whole_file(path) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
