"""``goen bench``: every method on the same images, one pass of each network over each set.

``goen run`` trains one network and makes a gate of it; ``goen bench`` makes no gate. It compares
all methods of ``goen.studies.methods``, with paired tests, on the networks they need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path

from goen.data.protocol import Protocol
from goen.detectors import Detector
from goen.detectors.pytorch_ood import pytorch_ood
from goen.errors import ExtraMissing, UsageError, unknown
from goen.io.manifest import JsonObject
from goen.io.results import Result, write_results, write_scores
from goen.io.stages import Stages, alone_in, summarised
from goen.metrics import holm, paired_auroc_test
from goen.studies.evaluate import Arrays, evaluation_sets, id_rows, ood_rows
from goen.studies.experiment import Experiment
from goen.studies.methods import METHODS, FitData, Method
from goen.studies.presets import Budget

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
    """

    methods: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    preset: str = "auto"
    budget: Budget = "full"
    seed: int = 42
    device: str = "auto"


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
    the same stages trains nothing and runs no network.

    Args:
        config: what to do.
        protocol: the images.
        out: the run's folder.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
        extra_methods: methods of your own, beside the chosen ones, each with a key of its own.

    Returns:
        The results, as in results.jsonl.
    """
    out = Path(out)
    methods, skipped = _chosen(config, extra_methods)
    protocol = _with_sets(protocol, config.sets)
    with alone_in(out):
        experiment = Experiment(
            config.preset,
            config.budget,
            config.seed,
            protocol,
            stages or Stages.beside(out),
            config.device,
        )
        named = {*config.methods, *(method.key for method in extra_methods)}
        methods = [m for m in methods if m.key in named or _is_default(m, experiment)]
        scores: dict[str, Arrays] = {}
        results: list[Result] = []
        for method in methods:
            scores[method.key], rows = _measure(method, experiment)
            results += rows
        results += _against_the_best(scores, results)
        summary: JsonObject = {
            "study": "bench",
            "data": protocol.name,
            "config": asdict(config),
            "recipe": experiment.preset.to_json(),
            "titles": {method.key: [method.title, method.section] for method in methods},
            "uses_ood": [method.key for method in methods if method.uses_ood],
            "skipped": skipped,
            "calibration_ood": list(protocol.calibration_ood),
            "missing": dict(protocol.missing),
        }
        with summarised(out, summary):
            write_results(out / "results.jsonl", results)
            write_scores(out / "scores.safetensors", _by_set(scores))
    return results


def _is_default(method: Method, experiment: Experiment) -> bool:
    """Whether the method is run unless it is named.

    Flip averaging is not for networks trained without flips, and the maximum of the last map not
    for the fast CNN, whose classifier reads just that.
    """
    if method.forward_mode == "last_map_max":
        return experiment.preset.network.architecture != "fast_cnn"
    return method.forward_mode != "flip_averaged" or experiment.preset.training.flip != "never"


def _chosen(
    config: BenchConfig, extra_methods: Sequence[Method]
) -> tuple[list[Method], dict[str, str]]:
    """The methods in the order of the table, and those left out with the reason."""
    _check_keys(extra_methods)
    available = {**METHODS, **{method.key: method for method in extra_methods}}
    external, skipped = [], {}
    for name in config.methods:
        if name.startswith(_PYTORCH_OOD):
            try:
                external.append(_from_pytorch_ood(name.removeprefix(_PYTORCH_OOD)))
            except ExtraMissing as error:
                skipped[name] = str(error)
                _log.warning(f"{name} is left out: {error}")
        elif name not in available:
            raise unknown("method", name, available)
    wanted = {*(config.methods or METHODS), *(method.key for method in extra_methods)}
    methods = [method for key, method in available.items() if key in wanted] + external
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


def _from_pytorch_ood(name: str) -> Method:
    detector = pytorch_ood(name)

    def fit(data: FitData) -> Detector:
        return detector.fit(*data["train"])

    return Method(f"pytorch_ood_{name.lower()}", f"pytorch-ood {name}", fit)


def _with_sets(protocol: Protocol, names: Sequence[str]) -> Protocol:
    for name in names:
        if name not in protocol.evaluation:
            raise unknown("OOD set", name, protocol.evaluation)
    kept = {n: ood for n, ood in protocol.evaluation.items() if n in names or not names}
    return replace(protocol, evaluation=kept)


def _measure(method: Method, experiment: Experiment) -> tuple[Arrays, list[Result]]:
    """The method's scores by set and all its numbers but the comparison with the best."""
    protocol = experiment.protocol
    fitted = experiment.fit(method)
    scored = {n: experiment.score(fitted, s) for n, s in evaluation_sets(protocol).items()}
    scores = {name: values for name, (values, _) in scored.items()}
    seconds = (fitted.origin.seconds or 0.0) + sum(taken for _, taken in scored.values())
    _log.info(f"{method.title}: {seconds:.2f} s")
    origin = replace(fitted.origin, seconds=seconds)
    test, _ = experiment.outputs(method.network, protocol.test, method.classification_mode)
    test = fitted.detector.calibrated(test)
    seconds = fitted.training_seconds
    rows = id_rows(origin, test.logits.numpy(), protocol.test, training_seconds=seconds)
    return scores, rows + ood_rows(origin, scores, protocol, fitted.seen)


def _against_the_best(scores: Mapping[str, Arrays], results: Sequence[Result]) -> list[Result]:
    """For each set and each method but the best: the p-value of its difference in AUROC.

    A method calibrated with other images of the set's kind takes no part: its AUROC there is not
    comparable. DeLong's paired test on the same images, with Holm's correction for the number of
    methods. It includes neither the spread over seeds nor the selection of the best method on these
    images.
    """
    found: list[Result] = []
    rows = [r for r in results if r.metric == "auroc" and not r.seen_in_calibration]
    for name in dict.fromkeys(r.dataset for r in rows):
        here = [r for r in rows if r.dataset == name]
        best = max(here, key=lambda r: r.value)
        others = [r for r in here if r is not best]
        p_values = [
            paired_auroc_test(
                id_a=scores[best.method]["test"],
                ood_a=scores[best.method][name],
                id_b=scores[r.method]["test"],
                ood_b=scores[r.method][name],
            ).p_value
            for r in others
        ]
        for row, p in zip(others, holm(p_values), strict=True):
            found.append(replace(row, metric="p_against_best", value=p, low=None, high=None))
    return found


def _by_set(scores: Mapping[str, Arrays]) -> dict[str, Arrays]:
    names = dict.fromkeys(name for arrays in scores.values() for name in arrays)
    return {name: {method: scores[method][name] for method in scores} for name in names}
