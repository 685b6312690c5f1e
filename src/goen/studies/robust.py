"""``goen robust``: accuracy, calibration and the share flagged under corruptions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goen.checks import check_choice
from goen.data.feature_set import FeatureSet
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.data.transforms.corruptions import CORRUPTIONS, SEVERITIES, corrupt_any, read_cifar10c
from goen.errors import UsageError
from goen.extraction import BATCH_SIZE
from goen.functional.conformal import threshold, with_tolerance
from goen.gate import Gate
from goen.io.manifest import JsonObject
from goen.io.results import Origin, Result, write_results
from goen.io.stages import Stages, alone_in, summarised
from goen.studies.base import BaseExperiment
from goen.studies.experiment import TrainingOptions
from goen.studies.given_gate import Evaluated, gate_origin, gate_scores, require_others
from goen.studies.given_network import GivenExperiment, GivenNetwork, detector_methods, identity
from goen.studies.methods import METHODS, Method, check_calibration
from goen.studies.rows import error_rows, id_rows, summary_of

_log = getLogger(__name__)

CLEAN = "clean"


@dataclass(frozen=True)
class RobustConfig(TrainingOptions):
    """What goen robust does.

    Attributes:
        methods: by name, as in goen bench.
        corruptions: by name; all fifteen if none is given.
        severities: from 1 to 5.
        images: number of test images; all if 0.
        false_alarm_rate: the share of clean ID images that may be flagged.
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
    _check(config, protocol.test, protocol.name)
    for name in config.methods:
        check_choice("method", name, METHODS)
    methods = [METHODS[name] for name in config.methods]
    check_calibration(methods, protocol)
    with alone_in(out):
        store = stages or Stages.beside(out)
        return _measured(config, config.experiment(protocol, store), methods, out)


def robust_given(
    config: RobustConfig,
    network: GivenNetwork,
    protocol: Protocol,
    out: Path,
    stages: Stages | None = None,
) -> list[Result]:
    """The same as ``robust`` for detectors on a given network.

    Args:
        config: what to do; its methods are names of detectors.
        network: of ``goen.studies.given_network.open_network``.
        protocol: its images.
        out: the study's folder.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
    """
    _check(config, protocol.test, protocol.name)
    methods, _ = detector_methods(network.network, config.methods)
    with alone_in(out):
        experiment = GivenExperiment(network, protocol, stages or Stages.beside(out))
        return _measured(config, experiment, methods, out)


def robust_gate(
    config: RobustConfig, gate: Gate, test: ImageSet, out: Path, *, batch_size: int = BATCH_SIZE
) -> list[Result]:
    """The same as ``robust`` for a gate, with its own threshold; images that fitted it are refused.

    Args:
        config: what to do; it names no methods.
        gate: itself.
        test: labelled ID images that it was not fitted with.
        out: the study's folder.
        batch_size: images per forward pass.
    """
    _check(config, test, test.name)
    images = Evaluated(test, {}, name=test.name)
    require_others(gate, images)
    network = gate.detector.prepare_network(gate.network)
    origin = gate_origin(gate, identity(gate.network, gate.outputs(test.read(slice(2)))))

    def measure(part: ImageSet) -> list[Result]:
        arrays, _ = gate_scores(gate, network, part, batch_size)
        scores = arrays[gate.detector.name]
        return _rows(origin, arrays["logits"], part, scores, arrays["is_ood"])

    titles = {gate.detector.name: (str(gate.detector), "")}
    with alone_in(out):
        results = _corruption_rows(config, test, measure)
        config = replace(config, methods=(), false_alarm_rate=gate.false_alarm_rate)
        _write(config, test.name, titles, {}, results, out)
    return results


def _measured(
    config: RobustConfig, experiment: BaseExperiment[Any], methods: Sequence[Method], out: Path
) -> list[Result]:
    """The results of these methods, which are written into the folder, too."""
    protocol = experiment.protocol
    # Raised before anything is trained where the held-out images are too few for the rate.
    threshold(np.zeros(len(protocol.held_out)), config.false_alarm_rate)
    fitted = [experiment.fit(method) for method in methods]
    limits = [
        threshold(
            with_tolerance(experiment.score(f, protocol.held_out)[0]), config.false_alarm_rate
        )
        for f in fitted
    ]

    def measure(every: ImageSet) -> list[Result]:
        images = every.take(np.flatnonzero(protocol.sets_no_threshold[: len(every)]))
        rows: list[Result] = []
        for f, limit in zip(fitted, limits, strict=True):
            scores, _ = experiment.score(f, images)
            logits = experiment.class_logits(f, images)
            rows += _rows(f.origin, logits, images, scores, scores > limit)
        experiment.forget(images)
        return rows

    results = _corruption_rows(config, protocol.test, measure)
    titles = {method.key: (method.title, str(method.section)) for method in methods}
    _write(config, protocol, titles, experiment.recipe, results, out)
    return results


def _corruption_rows(
    config: RobustConfig, test: ImageSet, measure: Callable[[ImageSet], list[Result]]
) -> list[Result]:
    results: list[Result] = []
    for images in _corrupted(test, config):
        _log.info(f"scoring {images.name}")
        results += measure(images)
    return results


def _write(
    config: RobustConfig,
    protocol: Protocol | str,
    titles: Mapping[str, tuple[str, str]],
    recipe: JsonObject,
    results: Sequence[Result],
    out: Path,
) -> None:
    options = {**asdict(config), "cifar10c": str(config.cifar10c or "")}
    summary = summary_of("robust", options, protocol, titles, recipe=recipe)
    with summarised(out, summary):
        write_results(out / "results.jsonl", results)


def _check(config: RobustConfig, test: ImageSet, data: str) -> None:
    available = len(test)
    if config.cifar10c is not None and data != "cifar10":
        raise UsageError(
            f"CIFAR-10-C is made of CIFAR-10's test images; the study is on {data}. Add "
            "--data cifar10."
        )
    channels = test.image_shape[0]
    if channels not in (1, 3) or isinstance(test, FeatureSet):
        raise UsageError(
            f"Corruptions are defined for colour and grey images; {test.name} has {channels} "
            "channels, or holds features."
        )
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


def _rows(
    origin: Origin,
    logits: NDArray[Any],
    images: ImageSet,
    scores: NDArray[Any],
    flagged: NDArray[Any],
) -> list[Result]:
    wrong = logits.argmax(axis=1) != np.asarray(images.labels)
    rows = id_rows(
        origin,
        logits,
        images,
        images.name,
        mean_score=scores.mean(),
        flagged=flagged.mean(),
    )
    return rows + error_rows(origin, scores, wrong, images.name)
