"""``goen bench``: every method on the same images, one pass of each network over each set.

``goen run`` trains one network and makes a gate of it; ``goen bench`` makes no gate. It compares
all methods of ``goen.studies.methods``, with paired tests, on the networks they need.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from logging import getLogger
from pathlib import Path

from goen.checks import check_choice
from goen.data.protocol import PROTOCOLS, Protocol
from goen.detectors import make_detector
from goen.errors import ExtraMissing, UsageError, first_of
from goen.io.results import Result
from goen.io.stages import Stages, alone_in
from goen.studies.compare import Asked, compare
from goen.studies.experiment import Experiment
from goen.studies.methods import (
    METHODS,
    Method,
    can_be_in_a_gate,
    check_calibration,
    fit_detector,
)
from goen.studies.presets import Budget
from goen.training.precision import PrecisionChoice

_log = getLogger(__name__)

_PYTORCH_OOD = "pytorch_ood."


@dataclass(frozen=True)
class BenchConfig:
    """What goen bench does.

    Attributes:
        methods: methods to compare, by name, such as max_softmax energy knn goen
            goen_m; all if none is given; an unknown name lists them. pytorch_ood.KNN and the like
            are classes of pytorch-ood.
        sets: OOD sets to evaluate on, by name; all if none is given.
        preset: network and training settings: digits (width 8, half a minute), cpu (width 16, 36
            epochs), short (the same, 12 epochs), fast (a network for short trainings, 16 epochs),
            fast-bf16 (the same in bfloat16, 20 epochs), wide-bf16 (short at width 64 in bfloat16)
            or paper (width 64, 40 epochs, for a GPU); auto takes digits for the digits and cpu for
            CIFAR-10.
        budget: full trains every network for the full schedule; paper stops early with a patience
            of ten epochs and gives the baselines 2.5 times GOEN's epochs, as in the paper.
        seed: random seed of all trainings; the ensemble uses four others as well.
        device: where networks train and run: cpu, cuda (cuda:1 is the second GPU), or auto: CUDA if
            it is available.
        precision: of trainings: float32, bfloat16, or auto: bfloat16 on a GPU that has instructions
            for it, float32 on other GPUs, and the preset's on a CPU.
    """

    methods: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    preset: str = "auto"
    budget: Budget = "full"
    seed: int = 42
    device: str = "auto"
    precision: PrecisionChoice = "auto"


def bench(
    config: BenchConfig,
    protocol: Protocol,
    out: Path | str,
    stages: Stages | None = None,
    *,
    extra_methods: Sequence[Method] = (),
) -> list[Result]:
    """Train the networks, extract their outputs once, score with every method, compare.

    Writes results.jsonl, scores.safetensors and, last, run.json. A second call with
    the same stages trains nothing and runs no network; into the same folder it adds its methods to
    those that are there.

    Args:
        config: what to do.
        protocol: the images.
        out: the run's folder.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
        extra_methods: methods of your own, beside the chosen ones, each with a key of its own.

    Returns:
        The results, as in results.jsonl.

    Raises:
        UsageError: an unknown method or set, or a folder with another comparison.
    """
    out = Path(out)
    methods, skipped = _chosen(config, extra_methods)
    protocol = of_sets(protocol, config.sets)
    settings = (config.preset, config.budget, config.seed)
    store = stages or Stages.beside(out)
    experiment = Experiment(*settings, protocol, store, config.device, config.precision)
    named = {*config.methods, *(method.key for method in extra_methods)}
    methods = [m for m in methods if m.key in named or experiment.is_default(m)]
    check_calibration(methods, protocol)
    asked = Asked(asdict(config), named, skipped, next_step=partial(_next_step, protocol.name))
    with alone_in(out):
        return compare(experiment, methods, out, asked).results


def in_order(protocol: Protocol, classes: Sequence[str]) -> Protocol:
    """The protocol with its ID classes in this order, that of a model's logits, if there is one.

    Raises:
        UsageError: it has other classes.
    """
    if not classes or tuple(classes) == protocol.train.classes:
        return protocol
    if {*classes} != {*protocol.train.classes}:
        raise UsageError(
            f"The classes of {protocol.name} ({first_of(protocol.train.classes, 5)}) are not those "
            f"of the model ({first_of(classes, 5)}). Name the folders as the model does, or give "
            "--classes, the folders in the order of the model's logits."
        )
    names = tuple(classes)
    sets = {
        role: images.of_classes(names, images.name)
        for role in ("train", "validation", "test")
        for images in [getattr(protocol, role)]
    }
    return replace(protocol, **sets)


def _next_step(data: str, key: str) -> str:
    """The command that makes a gate of a method, where there is one."""
    method = METHODS.get(key)
    makes_gate = method is not None and can_be_in_a_gate(method) and not method.uses_ood
    given = data if data in PROTOCOLS else "..."  # the folders of others are not recorded
    return f"goen run --data {given} --detector {key}" if makes_gate else ""


def of_sets(protocol: Protocol, names: Sequence[str]) -> Protocol:
    """The protocol with these OOD sets to evaluate on, or all if none is named."""
    for name in names:
        check_choice("OOD set", name, protocol.evaluation)
    chosen = {n: o for n, o in protocol.evaluation.items() if n in names or not names}
    return replace(protocol, evaluation=chosen)


def _chosen(
    config: BenchConfig, extra_methods: Sequence[Method]
) -> tuple[list[Method], dict[str, str]]:
    """The methods in the order of the table, and those left out with the reason."""
    _check_keys(extra_methods)
    available = {**METHODS, **{method.key: method for method in extra_methods}}
    external: list[Method] = []
    skipped: dict[str, str] = {}
    for name in config.methods:
        _, is_external, own = name.partition(_PYTORCH_OOD)
        if not is_external:
            check_choice("method", name, available)
            continue
        try:
            fit = partial(fit_detector, make_detector(name))
            external.append(Method(f"pytorch_ood_{own.lower()}", f"pytorch-ood {own}", fit))
        except ExtraMissing as error:
            skipped[name] = str(error)
    wanted = {*(config.methods or METHODS), *(method.key for method in extra_methods)}
    methods: list[Method] = []
    for method in available.values():
        try:
            if method.key in wanted:
                method.require()
                methods.append(method)
        except ExtraMissing as error:
            skipped[method.key] = str(error)
    for name, reason in skipped.items():
        _log.warning(f"{name} is left out: {reason}")
    methods += external
    if not methods:
        raise UsageError("No method is left to compare.")
    return methods, skipped


def _check_keys(extra_methods: Sequence[Method]) -> None:
    """Raise a UsageError if one of these is no method, or would take the place of another."""
    if isinstance(extra_methods, Method):
        raise UsageError(
            "extra_methods is a list of methods, got one: write extra_methods=[method]."
        )
    taken: set[str] = set()
    for method in extra_methods:
        builtin = METHODS.get(method.key)
        # A built-in method on another network keeps its key.
        if method.key in taken or (builtin is not None and method.fit is not builtin.fit):
            whose = "of another of yours" if method.key in taken else "of a method of goen"
            raise UsageError(
                f"The key {method.key!r} of your method {method.title!r} is also that {whose}, and "
                "results are told apart by their key. Give it another."
            )
        taken.add(method.key)
