"""The defaults of public calls, commands and settings are these: changing one is a decision."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import goen
from goen.cli.main import COMMANDS

# Settings beside the public names: what the commands hand on.
SETTINGS = {
    "cli.options.fit_inputs": ["FitOptions"],
    "cli.options.model": ["RateOptions"],
    "cli.options.own_model": ["ModelOptions"],
    "cli.options.score": ["OutputOptions"],
    "cli.options.study": ["TableOptions"],
    "detectors.calibration_head": ["HeadConfig"],
    "gate.adapters": ["GateEstimator"],
    "serve.settings": ["BatchLimits", "Limits", "ServeSettings"],
    "studies.ablate": ["AblateConfig"],
    "studies.bench": ["BenchConfig"],
    "studies.robust": ["RobustConfig"],
    "studies.run": ["RunConfig"],
    "training.config": ["TrainingConfig"],
}
DEFAULTS = """
goen.Gate: per_class=False
goen.Gate.export: any_size=True, overwrite=False
goen.Gate.fit: false_alarm_rate=0.05, flip_averaging=False, batch_size=128
goen.Gate.fit_outputs: false_alarm_rate=0.05, batch_size=4096
goen.Gate.nearest: count=3, batch_size=256
goen.Gate.predict: batch_size=256
goen.Gate.save: overwrite=False
goen.Gate.update: batch_size=128
goen.Gate.with_per_class: per_class=True
goen.LinearClassifier.of: scale=1.0
goen.Monitor: seed=0
goen.Monitor.from_scores: seed=0
goen.Monitor.save: overwrite=False
goen.Prediction: grouped=False
goen.Prediction.explain: row=0
goen.Prediction.show: most=20
goen.extract: batch_size=256
goen.list_layers: every=False
goen.data.load_set: download=False
goen.data.protocol: download=False
goen.detectors.GEN: gamma=0.1, top=100
goen.detectors.KNN: k=50
goen.detectors.LTS: percentile=95.0
goen.detectors.MCM: temperature=1.0
goen.detectors.NCI: alpha=0.0
goen.detectors.NECO: variance=0.9, max_logit=True
goen.detectors.ODIN: epsilon=0.0014, temperature=1000.0, one_value=False
goen.detectors.SCALE: percentile=85.0
goen.detectors.VRA: low=60.0, high=90.0
goen.detectors.AdaSCALE: low=75.0, high=85.0, epsilon=0.125, share=0.05
goen.detectors.ClassMixture: components=4
goen.detectors.Energy: temperature=1.0
goen.detectors.Flow: transforms=3, seed=0
goen.detectors.Goen: ridge=1e-05
goen.detectors.GoenM: rows=5000
goen.detectors.Mahalanobis: normalise=False, ridge=1e-06
goen.detectors.MultilayerMahalanobis: num_layers=3
goen.detectors.NNGuide: k=10, rows=5000
goen.detectors.OpenMax: tail=20, alpha=3
goen.detectors.OptFS: bins=100
goen.detectors.Perturbed: epsilon=0.0014, temperature=1000.0, one_value=False
goen.detectors.ReAct: percentile=90.0
goen.detectors.Relation: power=1.0, threshold=0.03, rows=5000
goen.detectors.RelativeMahalanobis: normalise=False, ridge=1e-06
goen.metrics.bootstrap: num_resamples=1000, level=0.95, seed=0
goen.metrics.id_metrics: num_bins=15
goen.metrics.ood_calibration: num_bins=15
goen.metrics.ood_metrics: level=0.95
goen.metrics.over_seeds: level=0.95
goen.metrics.paired_auroc_test: level=0.95
goen.metrics.paired_mean_auroc_test: level=0.95
goen.metrics.reliability_curve: num_bins=15
goen.models.Classifier.loss: label_smoothing=0.0, progress=1.0
goen.models.NetworkConfig: num_classes=10, width=64
goen report: paper=False
goen fit: overwrite=False
goen extract: unlabelled=False, overwrite=False
goen serve: port=8000, restart=False, keep_most=1000, alarm_probability=0.01, batch_size=64,
    wait_ms=5.0, queue=512, max_mb=32, max_pixels=50000000, max_images=64, quiet=False
goen watch: once=False, keep_going=False, restart=False, every=2.0
goen check: json_=False
goen export: fixed_size=False, overwrite=False
goen data list: json_=False
goen data show: overwrite=False
FitOptions: false_alarm_rate=0.05, flip_averaging=False
RateOptions: per_class=False
ModelOptions: batch_size=128
OutputOptions: flagged_only=False, overwrite=False
TableOptions: json_=False
HeadConfig: epochs=20, batch_size=128, learning_rate=0.001, patience=5, held_out=0.2, seed=42
GateEstimator: false_alarm_rate=0.05, held_out_share=0.3
BatchLimits: most=64, wait=0.005, capacity=512
Limits: body=33554432, bodies=268435456, pixels=50000000, images=64, images_at_full_size=16,
    connections=512, connections_per_address=256, header_seconds=10.0, body_seconds=30.0,
    idle_seconds=30, drain_seconds=30
ServeSettings: restart=False, keep_most=1000, alarm_probability=0.01
AblateConfig: seed=42
BenchConfig: seed=42
RobustConfig: images=0, false_alarm_rate=0.05, seed=42
RunConfig: center_loss=0.0, head_epochs=0, false_alarm_rate=0.05, seed=42
TrainingConfig: epochs=40, batch_size=128, learning_rate=0.1, momentum=0.9, weight_decay=0.0005,
    label_smoothing=0.1, center_loss=0.0, padding=4, seed=42, norm_bias_rate=1.0, look_ahead=0,
    early_epochs=3, cutout=0, logit_norm=0.0, fractals=0.0, rotation_loss=0.0, rotated=0.25
"""


def defaults(function: Callable[..., Any]) -> str:
    """The parameters whose default is a number, ``True`` or ``False``."""
    found = inspect.signature(function).parameters.values()
    return ", ".join(f"{p.name}={p.default}" for p in found if isinstance(p.default, float | int))


def own_methods(place: str, of: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods that are goen's own, by name."""
    for name in dir(of):
        method = None if name.startswith("_") else getattr(of, name)
        if inspect.isroutine(method) and method.__module__.startswith("goen"):
            yield f"{place}.{name}", method


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes and their methods, by name."""
    for module in (goen, goen.data, goen.detectors, goen.metrics, goen.models):
        for name in module.__all__:
            found, place = getattr(module, name), f"{module.__name__}.{name}"
            if callable(found):
                yield place, found
            if isinstance(found, type):
                yield from own_methods(place, found)


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that are called for a command or a subcommand."""
    for command in COMMANDS:
        module = importlib.import_module(f"goen.cli.{command}")
        found = getattr(module, "SUBCOMMANDS", None) or {"": getattr(module, f"{command}_command")}
        for name, function in found.items():
            yield f"goen {command} {name}".strip(), function


def settings() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, classes in SETTINGS.items():
        module = importlib.import_module(f"goen.{name}")
        yield from ((each, getattr(module, each)) for each in classes)


def test_defaults() -> None:
    found = [(name, defaults(call)) for name, call in chain(public(), commands(), settings())]
    lines = [f"{name}: {text}" for name, text in found if text]
    assert lines == DEFAULTS.replace("\n    ", " ").strip().splitlines()
