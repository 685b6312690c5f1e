"""``goen run``: train, fit, calibrate, set the threshold, evaluate. Each stage is computed once."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from goen.batch import parts_of
from goen.checks import check_choice, check_number
from goen.data.imageset import ImageSet
from goen.data.input_spec import ImageInputs
from goen.data.inputs import as_stream, image_hashes
from goen.data.protocol import PROTOCOLS, Protocol
from goen.data.protocols.plan import GENERATED
from goen.detectors import Detector, Goen
from goen.detectors.registry import BEST
from goen.detectors.tuned import TUNED
from goen.errors import UsageError, warn
from goen.extraction import BATCH_SIZE
from goen.features.package_networks import PRETRAINED, is_installed
from goen.functional.conformal import threshold
from goen.functional.image_properties import image_properties
from goen.gate import Gate, HeldOut
from goen.gate.decision import require_finite
from goen.gate.fitting.near_copies import TrainingRows, describe_near_copies
from goen.gate.fitting.passes import gather
from goen.gate.fitting.sets import OOD
from goen.gate.threshold import COMPARED_IMAGES, Answers
from goen.io.files import printable_path
from goen.io.manifest import JsonObject
from goen.io.stages import Stages, alone_in, summarised
from goen.models import Representation
from goen.models.flip_averaging import FlipAveraged
from goen.outputs import Outputs
from goen.studies.base import BaseExperiment, FittedMethod
from goen.studies.experiment import AS_PRESET, TrainingOptions
from goen.studies.gate_evaluation import GateEvaluation, evaluate_gate
from goen.studies.methods import (
    METHODS,
    Method,
    can_be_in_a_gate,
    check_calibration,
    labels_of,
)
from goen.studies.networks import write_epochs
from goen.studies.presets import Budget, Preset, choose_preset
from goen.studies.pretrained import PretrainedExperiment, can_be_pretrained
from goen.studies.rows import summary_of
from goen.training.fine_tuning import FineTuning, Tuned
from goen.training.probe import BACKBONE

_log = getLogger(__name__)

_WHY_NOT = (
    f"it is for colour images of your own, without --from-scratch, --preset, --budget, "
    f"--representation and --center-loss, and needs goen[{PRETRAINED}]"
)


@dataclass(frozen=True)
class RunConfig(TrainingOptions):
    """What goen run does.

    Attributes:
        representation: the features of the detector: two scales (layer2 and layer4 of the
            ResNet-18) projected together, the last alone, the two concatenated, or plain: those of
            an ordinary network, the last as the classifier reads it. preset: plain for fast and
            fast-bf16, two scales projected together for the others.
        detector: of the gate: goen, the paper's (on images of your own its distance alone, unless
            --calibration-ood names OOD images of yours), or another that goen bench compares, such
            as goen_m, knn or energy.
        center_loss: weight of the center loss; 0 switches it off.
        head_epochs: of the calibration head's training at most; 0 is the preset's number, 20. The
            paper's Table 3 has 10.
        false_alarm_rate: upper bound on the probability that an ID image is flagged.
        from_scratch: with images of your own, train a network on them alone. Otherwise a network
            pretrained on ImageNet stays as it is and gets a linear classifier, which takes minutes
            and few images (needs goen[pretrained]; not for grey or multi-band images).
        fine_tune: train the pretrained network further: its last quarter (last) or all of it.
    """

    representation: Representation | Literal["preset"] = "preset"
    detector: str = "goen"
    center_loss: float = 0.0
    head_epochs: int = 0
    false_alarm_rate: float = 0.05
    from_scratch: bool = False
    fine_tune: Literal["no"] | Tuned = "no"

    def __post_init__(self) -> None:
        representations = ("preset", *get_args(Representation))
        check_choice("budget", self.budget, get_args(Budget))
        check_choice("fine_tune", self.fine_tune, ("no", *get_args(Tuned)))
        check_choice("representation", self.representation, representations)
        check_number("center_loss", self.center_loss, at_least=0)
        check_number("head_epochs", self.head_epochs, whole=True, at_least=0)
        if self.detector == BEST:
            raise UsageError(
                "goen run reports on the OOD images, so they cannot choose its detector. goen "
                "bench on the same images names the best one for --detector; or choose with other "
                "OOD images: goen fit --model RUN --data DATA --detector best --ood OTHER_OOD."
            )
        check_choice("detector", self.detector, [m for m in METHODS if not m.endswith(TUNED)])
        method = METHODS[self.detector]
        if not can_be_in_a_gate(method):
            raise UsageError(
                f"goen run makes a gate of the preset's network, and {method.title} has a network "
                "of its own, which goen bench trains. Choose another detector, such as goen_m or "
                "knn."
            )

    @property
    def may_be_pretrained(self) -> bool:
        """Whether nothing is asked for that a network trained from scratch alone has."""
        usual = ("preset", "budget", "representation", "center_loss")
        as_usual = all(getattr(self, name) == getattr(RunConfig, name) for name in usual)
        return as_usual and not self.from_scratch and is_installed(BACKBONE)

    def is_pretrained(self, protocol: Protocol) -> bool:
        """Whether the network is a pretrained one: for colour images of one's own."""
        own = protocol.name not in PROTOCOLS
        if own and not self.from_scratch and not is_installed(BACKBONE):
            _log.info(
                "The network is trained from scratch. A pretrained one needs fewer images: pip "
                f"install 'goen[{PRETRAINED}]'."
            )
        return self.may_be_pretrained and can_be_pretrained(protocol)

    def preset_for(self, protocol: Protocol) -> Preset:
        """The preset with the choices of this run."""
        preset = choose_preset(self.preset, protocol, self.budget, self.seed)
        network = preset.network
        if self.representation != "preset":
            network = replace(network, representation=self.representation)
        training = replace(preset.training, center_loss=self.center_loss)
        epochs = self.head_epochs or preset.head.epochs
        return Preset(network, training, replace(preset.head, epochs=epochs))


def run(
    config: RunConfig, protocol: Protocol, out: Path | str, stages: Stages | None = None
) -> Gate:
    """Train, fit, calibrate and evaluate a gate.

    Stages that any study has finished with the same configuration and data are reused; an
    interrupted one resumes where it stopped. Writes gate/, results.jsonl,
    scores.safetensors, training.jsonl, head.jsonl and, last, run.json: a folder without it holds no
    finished run.

    Args:
        config: what to do.
        protocol: the images. Without OOD sets that calibrate, the paper's detector has no head and
            its distance is the score.
        out: the run's folder.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
    """
    return evaluated_run(config, protocol, Path(out), stages).gate


def evaluated_run(
    config: RunConfig, protocol: Protocol, out: Path, stages: Stages | None
) -> GateEvaluation:
    """The same as ``run``, with the results and the scores."""
    METHODS[config.detector].require()
    if len(protocol.train.classes) < 2:
        raise UsageError(
            f"{protocol.name} has one class ({protocol.train.classes[0]}), and a classifier needs "
            "two or more: make a folder of images for each. Images of one kind alone: goen extract "
            "and goen fit --features make a novelty detector of their features."
        )
    with alone_in(out):
        experiment = _experiment(config, protocol, stages or Stages.beside(out))
        held_out = experiment.protocol.held_out
        # Too few held-out images for the rate: an error before training.
        threshold(np.zeros(len(held_out)), config.false_alarm_rate)
        methods = _methods(config, experiment)
        check_calibration(methods, experiment.protocol)
        fitted = [experiment.fit(method) for method in methods]
        paper = fitted[-1].detector if isinstance(fitted[-1].detector, Goen) else None
        evaluation = evaluate_gate(_make_gate(config, experiment, fitted[-1]), experiment, fitted)
        summary = summary_of(
            "run",
            asdict(config),
            protocol,
            {f.method.key: (f.method.title, "") for f in fitted},
            uses_ood=[f.method.key for f in fitted if f.method.uses_ood],
            threshold=evaluation.gate.threshold,
            condition_number=paper and paper.whitening_.condition_number,
            held_out=len(held_out),
            metadata=evaluation.gate.metadata,
        )
        with summarised(out, summary):
            evaluation.write(out)
            write_epochs(out / "training.jsonl", experiment.members(AS_PRESET)[0].epochs)
    return evaluation


def _experiment(config: RunConfig, protocol: Protocol, stages: Stages) -> BaseExperiment[Any]:
    """The experiment with the network that the run asks for."""
    if not config.is_pretrained(protocol):
        if config.fine_tune != "no":
            raise UsageError(
                "--fine-tune trains a pretrained network further, and this run has none: "
                f"{_WHY_NOT}."
            )
        return config.experiment(protocol, stages, config.preset_for(protocol))
    tuning = None if config.fine_tune == "no" else FineTuning(config.fine_tune, seed=config.seed)
    return PretrainedExperiment(
        protocol, stages, seed=config.seed, tuning=tuning, device=config.device
    )


def _methods(config: RunConfig, experiment: BaseExperiment[Any]) -> list[Method]:
    """The methods that are compared; the last one is the gate's.

    On images of one's own the paper's detector scores by its distance if generated images are all
    that could fit its head, which is then mostly the worse of the two (docs/own-data.md).
    """
    keys = ["max_softmax", config.detector]
    sets = experiment.protocol.calibration_ood
    if config.detector == "goen":
        keys[1:] = ["goen_distance", *(["goen"] if sets else [])]
        if experiment.protocol.name not in PROTOCOLS and {*sets} <= {*GENERATED}:
            keys[1:] = reversed(keys[1:])
    return [replace(METHODS[key], network=AS_PRESET) for key in dict.fromkeys(keys)]


def _make_gate(config: RunConfig, experiment: BaseExperiment[Any], fitted: FittedMethod) -> Gate:
    """The gate of a fitted method."""
    protocol, detector = experiment.protocol, fitted.detector
    network: nn.Module = experiment.members(AS_PRESET)[0].network
    if fitted.method.forward_mode == "flip_averaged":
        network = FlipAveraged(network)
    outputs = experiment.outputs(AS_PRESET, protocol.held_out, fitted.method.forward_mode)[0]
    if not detector.is_fitted or detector.widths_ is None:
        detector.fit_training(outputs, labels_of(protocol.held_out.labels))  # its classes alone
    if "train" in fitted.method.fits_on:
        trained = experiment.outputs(AS_PRESET, protocol.train, fitted.method.forward_mode)[0]
        _warn_of_near_copies(detector, protocol, trained, outputs)
    used = {
        "train": protocol.train,
        "calibration": protocol.calibration_id,
        "held_out": protocol.held_out,
        **{f"{OOD}{name}": images for name, images in protocol.calibration_ood.items()},
    }
    metadata: JsonObject = {"recipe": experiment.recipe, "run": asdict(config)}
    return gate_of(network, detector, used, outputs, config.false_alarm_rate, metadata)


def _warn_of_near_copies(
    detector: Detector, protocol: Protocol, trained: Outputs, held_out: Outputs
) -> None:
    """Warn of held-out images that lie near a training image or near each other.

    Args:
        detector: fitted.
        protocol: with the images.
        trained: the outputs of its training images.
        held_out: the outputs of its held-out images.
    """
    rows = TrainingRows(detector)
    rows.add(trained)
    sets = {"train": protocol.train, "held_out": protocol.held_out}
    streams = {role: as_stream(images, role, len(images)) for role, images in sets.items()}
    files = [printable_path(file) for file in protocol.held_out.files()]
    for sentence in describe_near_copies(rows.compare(held_out, streams), files):
        warn(sentence)


def gate_of(
    network: nn.Module,
    detector: Detector,
    sets: Mapping[str, ImageSet],
    outputs: Outputs,
    false_alarm_rate: float,
    metadata: JsonObject,
) -> Gate:
    """The gate of a fitted detector, with its threshold from the held-out images.

    Args:
        network: of the gate.
        detector: fitted.
        sets: by role, as of ``Gate.fit``; ``held_out`` neither trained nor calibrated anything.
        outputs: of the network that the detector scores, for the held-out images.
        false_alarm_rate: upper bound on the probability that an ID image is flagged.
        metadata: of the gate; the sets are added.
    """
    require_finite(outputs, detector)
    held_out = sets["held_out"]
    few = held_out.take(range(min(COMPARED_IMAGES, len(held_out))))
    running = detector.prepare_network(network)
    tried = gather(running, as_stream(few, few.name, len(few)), detector.features)
    return Gate(
        network=network,
        detector=detector,
        held_out=HeldOut.from_cues(
            detector,
            detector.cues(outputs),
            answers=Answers.of(detector, outputs, labels_of(held_out.labels)),
            properties=_properties(held_out),
            rounding=tried.rounding(detector),
        ),
        false_alarm_rate=false_alarm_rate,
        classes=held_out.classes,
        inputs=ImageInputs(
            *held_out.image_shape, bits=16 if held_out.pixels.dtype == np.uint16 else 8
        ),
        metadata={**metadata, "splits": {role: part.to_json() for role, part in sets.items()}},
        image_hashes={role: image_hashes(part.digests) for role, part in sets.items()},
    )


def _properties(images: ImageSet) -> Tensor:
    """Of all images, ``(N, P)``."""
    batches = as_stream(images, images.name, BATCH_SIZE)
    return torch.cat([image_properties(parts_of(batch)[""]) for batch, _ in batches])
