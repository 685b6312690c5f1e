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
from goen.data.protocol import Protocol
from goen.detectors import DETECTORS, make_detector
from goen.errors import ExtraMissing, UsageError, first_of
from goen.io.results import Result
from goen.io.stages import Stages, alone_in
from goen.studies.compare import Asked, compare
from goen.studies.experiment import AS_PRESET, TrainingOptions
from goen.studies.given_network_bench import compare_given
from goen.studies.methods import (
    METHODS,
    Method,
    can_be_in_a_gate,
    check_calibration,
    fit_detector,
    with_tuned,
)
from goen.studies.pretrained import PretrainedExperiment, can_be_pretrained
from goen.training.probe import BATCH_SIZE

_log = getLogger(__name__)
METHODS_TUNED = frozenset(key for key, method in METHODS.items() if method.section == "tuned")

_PYTORCH_OOD = "pytorch_ood."


@dataclass(frozen=True)
class BenchConfig(TrainingOptions):
    """What goen bench does.

    Attributes:
        methods: methods to compare, by name, such as max_softmax energy knn goen
            goen_m; all if none is given; an unknown name lists them. pytorch_ood.KNN and the like
            are classes of pytorch-ood.
        sets: OOD sets to evaluate on, by name; all if none is given.
        tune: compare methods with parameters also with those that the OOD sets that calibrate
            choose, in rows apart.
        from_scratch: with images of your own, train the networks that methods need on these images
            alone. Otherwise detectors are compared on the network of goen run: pretrained, with a
            linear classifier for your classes (needs goen[pretrained]; colour images).
    """

    methods: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    tune: bool = False
    from_scratch: bool = False

    @property
    def may_be_pretrained(self) -> bool:
        """Whether nothing is asked for that needs networks trained from scratch."""
        usual = (self.preset, self.budget) == (BenchConfig.preset, BenchConfig.budget)
        return usual and not self.from_scratch and {*self.methods} <= {*DETECTORS, *METHODS_TUNED}


def bench(
    config: BenchConfig,
    protocol: Protocol,
    out: Path | str,
    stages: Stages | None = None,
    *,
    extra_methods: Sequence[Method] = (),
    command: str = "",
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
        command: that makes a gate of the same images, without its detector.

    Returns:
        The results, as in results.jsonl.

    Raises:
        UsageError: an unknown method or set, or a folder with another comparison.
    """
    out = Path(out)
    protocol = of_sets(protocol, config.sets)
    if config.may_be_pretrained and not extra_methods and can_be_pretrained(protocol):
        store = stages or Stages.beside(out)
        probed = PretrainedExperiment(protocol, store, seed=config.seed, device=config.device)
        (network,) = probed.members(AS_PRESET)
        return compare_given(
            network,
            protocol,
            config.methods,
            out,
            store,
            tune=config.tune,
            command=command,
            batch_size=BATCH_SIZE,
        ).results
    methods, skipped = _chosen(config, extra_methods)
    experiment = config.experiment(protocol, stages or Stages.beside(out))
    named = {*config.methods, *(method.key for method in extra_methods)}
    if config.tune:
        named |= {m.key for m in methods if m.section == "tuned"}
    methods = [m for m in methods if m.key in named or experiment.is_default(m)]
    check_calibration(methods, protocol)
    asked = Asked(asdict(config), named, skipped, next_step=partial(_next_step, command))
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


def _next_step(command: str, key: str) -> str:
    """The command that makes a gate of a method, where there is one."""
    method = METHODS.get(key)
    makes_gate = method is not None and can_be_in_a_gate(method) and not method.uses_ood
    return f"{command or 'goen run'} --detector {key}" if makes_gate else ""


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
    names = config.methods or [key for key, m in METHODS.items() if m.section != "tuned"]
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
    wanted = {*(with_tuned(names) if config.tune else names)}
    wanted |= {method.key for method in extra_methods}
    methods: list[Method] = []
    for method in available.values():
        try:
            if method.key in wanted:
                method.require()
                methods.append(method)
        except ExtraMissing as error:
            skipped[method.key] = str(error)
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
