"""``goen robust``: accuracy, calibration and the share flagged under corruptions."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from logging import getLogger
from pathlib import Path

import numpy as np

from goen.checks import check_choice
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.data.transforms.corruptions import CORRUPTIONS, SEVERITIES, corrupt_any, read_cifar10c
from goen.errors import UsageError
from goen.functional.conformal import threshold, with_tolerance
from goen.io.results import Result, write_results
from goen.io.stages import Stages, alone_in, summarised
from goen.studies.evaluate import id_rows, summary_of
from goen.studies.experiment import Experiment, FittedMethod
from goen.studies.methods import METHODS, check_calibration
from goen.studies.presets import Budget
from goen.training.precision import PrecisionChoice

_log = getLogger(__name__)

CLEAN = "clean"


@dataclass(frozen=True)
class RobustConfig:
    """What goen robust does.

    Attributes:
        methods: by name, as in goen bench.
        corruptions: by name; all fifteen if none is given.
        severities: from 1 to 5.
        images: number of test images; all if 0.
        false_alarm_rate: the share of clean ID images that may be flagged.
        preset: network and training settings: digits (width 8, half a minute), cpu (width 16, 36
            epochs), short (the same, 12 epochs), fast (a network for short trainings, 16 epochs),
            fast-bf16 (the same in bfloat16, 20 epochs), wide-bf16 (short at width 64 in bfloat16)
            or paper (width 64, 40 epochs, for a GPU); auto takes digits for the digits and cpu for
            CIFAR-10.
        budget: full gives every network the same whole schedule; paper stops early.
        seed: of all trainings.
        device: where networks train and run: cpu, cuda (cuda:1 is the second GPU), or auto: CUDA if
            it is available.
        precision: of trainings: float32, bfloat16, or auto: bfloat16 on a GPU that has instructions
            for it, float32 on other GPUs, and the preset's on a CPU.
        cifar10c: a folder with the official CIFAR-10-C files, to use instead of goen's corruptions.
    """

    methods: tuple[str, ...] = (
        "max_softmax",
        "temperature_scaling",
        "knn",
        "goen_distance",
        "goen",
        "goen_m",
    )
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = SEVERITIES
    images: int = 0
    false_alarm_rate: float = 0.05
    preset: str = "auto"
    budget: Budget = "full"
    seed: int = 42
    device: str = "auto"
    precision: PrecisionChoice = "auto"
    cifar10c: Path | None = None


def robust(
    config: RobustConfig, protocol: Protocol, out: Path | str, stages: Stages | None = None
) -> list[Result]:
    """Accuracy, calibration, mean score and share flagged, by corruption and severity.

    A corrupted image still has its class, so it is not OOD; whether a gate should flag it depends
    on the application, and the share flagged is reported without a judgement. The threshold is
    that of a gate: conformal, from clean held-out images, with the same tolerance above numerical
    noise. Rows have the set ``NAME-SEVERITY``; ``clean`` is the uncorrupted test set.

    Args:
        config: what to do.
        protocol: the images.
        out: the study's folder.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
    """
    out = Path(out)
    _check(config, protocol)
    methods = [METHODS[name] for name in config.methods]
    check_calibration(methods, protocol)
    with alone_in(out):
        store = stages or Stages.beside(out)
        experiment = Experiment(
            config.preset,
            config.budget,
            config.seed,
            protocol,
            store,
            config.device,
            config.precision,
        )
        protocol = experiment.protocol
        # Raised before anything is trained where the held-out images are too few for the rate.
        threshold(np.zeros(len(protocol.held_out)), config.false_alarm_rate)
        fitted = [experiment.fit(method) for method in methods]
        limits = {
            f.method.key: threshold(
                with_tolerance(experiment.score(f, protocol.held_out)[0]), config.false_alarm_rate
            )
            for f in fitted
        }
        results: list[Result] = []
        for every in _corrupted(protocol.test, config):
            images = every.take(np.flatnonzero(protocol.sets_no_threshold[: len(every)]))
            _log.info(f"scoring {images.name}")
            for f in fitted:
                results += _measure(experiment, f, images, limits[f.method.key])
            experiment.forget(images)
        summary = summary_of(
            "robust",
            {**asdict(config), "cifar10c": str(config.cifar10c or "")},
            protocol,
            {method.key: (method.title, method.section) for method in methods},
            recipe=experiment.preset.to_json(),
        )
        with summarised(out, summary):
            write_results(out / "results.jsonl", results)
    return results


def _check(config: RobustConfig, protocol: Protocol) -> None:
    available = len(protocol.test)
    if config.cifar10c is not None and protocol.name != "cifar10":
        raise UsageError(
            f"CIFAR-10-C is made of CIFAR-10's test images; the study is on {protocol.name}. Add "
            "--data cifar10."
        )
    channels = protocol.test.image_shape[0]
    if channels not in (1, 3):
        raise UsageError(
            f"Corruptions are defined for colour and grey images; {protocol.test.name} has "
            f"{channels} channels."
        )
    for name in config.methods:
        check_choice("method", name, METHODS)
    for name in config.corruptions:
        check_choice("corruption", name, CORRUPTIONS)
    if not config.methods or not config.severities:
        raise UsageError("Name at least one method and one severity.")
    for severity in config.severities:
        if severity not in SEVERITIES:
            raise UsageError(f"A severity is 1 to 5, got {severity}.")
    if not 0 <= config.images <= available:
        raise UsageError(f"There are {available} test images, {config.images} were requested.")


def _corrupted(test: ImageSet, config: RobustConfig) -> Iterator[ImageSet]:
    """The clean test images, then each corruption of them, with the names of their rows."""
    count = config.images or len(test)
    chosen = test.take(np.arange(count), CLEAN)
    yield chosen
    for name in config.corruptions or tuple(CORRUPTIONS):
        for severity in config.severities:
            if config.cifar10c is None:
                pixels = corrupt_any(chosen.read(), name, severity)
            else:
                pixels = np.array(read_cifar10c(config.cifar10c, name, severity)[:count])
            yield ImageSet(f"{name}-{severity}", pixels, chosen.labels, chosen.classes)


def _measure(
    experiment: Experiment, fitted: FittedMethod, images: ImageSet, limit: float
) -> list[Result]:
    scores, _ = experiment.score(fitted, images)
    return id_rows(
        fitted.origin,
        experiment.class_logits(fitted, images),
        images,
        images.name,
        mean_score=scores.mean(),
        flagged=(scores > limit).mean(),
    )
