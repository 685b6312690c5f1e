"""The ablation: the paper's four variants, its figure's, and the factors it leaves tangled."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from logging import getLogger
from pathlib import Path
from typing import Any

from goen.data.protocol import Protocol
from goen.errors import unknown
from goen.metrics import holm, paired_auroc_test
from goen.runs.manifest import JsonObject
from goen.runs.results import Result, read_results, read_scores, write_results, write_scores
from goen.runs.stages import Stages, alone_in, check_run_folder, summarised
from goen.studies.bench import Arrays
from goen.studies.presets import Budget
from goen.studies.run import RunConfig, run

_log = getLogger(__name__)

CENTER_LOSS = 0.01
_HEAD, _DISTANCE = "with the calibrated head", "distance alone"


@dataclass(frozen=True)
class Variant:
    """One row of the ablation: what it changes of a run."""

    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)


VARIANTS: Mapping[str, Variant] = {
    "default": Variant("default, with CenterLoss", {"center_loss": CENTER_LOSS}),
    "no_center_loss": Variant("NoCenterLoss"),
    "single_scale": Variant(
        "SingleScale-L4, with CenterLoss",
        {"center_loss": CENTER_LOSS, "representation": "single_scale"},
    ),
    "single_scale_no_center_loss": Variant("SingleScale-L4", {"representation": "single_scale"}),
    "no_svhn": Variant(
        "NoSVHN (noise alone calibrates), with CenterLoss",
        {"center_loss": CENTER_LOSS, "calibration_ood": "noise"},
    ),
    "no_svhn_no_center_loss": Variant(
        "NoSVHN (noise alone calibrates)", {"calibration_ood": "noise"}
    ),
    "concat": Variant(
        "concatenation as in the figure, with CenterLoss",
        {"center_loss": CENTER_LOSS, "representation": "concat"},
    ),
    "concat_no_center_loss": Variant(
        "concatenation as in the figure", {"representation": "concat"}
    ),
}
"""The paper's four are default, no_center_loss, single_scale and no_svhn."""


@dataclass(frozen=True)
class AblateConfig:
    """What goen ablate does.

    Attributes:
        variants: by name; all if none is given. default is always included.
        preset: network and training settings: digits, cpu, short or paper; auto is digits for
            digits and cpu for CIFAR-10.
        budget: full trains the whole schedule; paper stops early.
        seed: of all trainings.
    """

    variants: tuple[str, ...] = ()
    preset: str = "auto"
    budget: Budget = "full"
    seed: int = 42

    def run(self, variant: str) -> RunConfig:
        """The main job for this variant."""
        plain = RunConfig(preset=self.preset, budget=self.budget, seed=self.seed)
        return replace(plain, **VARIANTS[variant].changes)


def ablate(
    config: AblateConfig, protocol: Protocol, out: Path, stages: Stages | None = None
) -> list[Result]:
    """Run the main job for every variant, and compare the variants on the same images.

    Every variant is two rows, with its head and by its distance alone; the distance of a variant
    that only calibrates differently is the same and left out. Each OOD set has two kinds of paired
    test: ``p_against_default`` (Holm's correction over the variants) and, where a variant exists
    with and without CenterLoss, ``p_of_center_loss`` in the row without.

    Args:
        config: what to do.
        protocol: the images.
        out: the study's folder; each variant's run lies in ``variants/`` in it.
        stages: finished work, shared between studies; in out if not given.
    """
    for name in config.variants:
        if name not in VARIANTS:
            raise unknown("variant", name, VARIANTS)
    wanted = {"default", *(config.variants or VARIANTS)}
    variants = [name for name in VARIANTS if name in wanted]
    store = stages or Stages(out / "stages")
    for name in variants:
        check_run_folder(out / "variants" / name)
    with alone_in(out):
        results: list[Result] = []
        scores: dict[str, dict[str, Any]] = {}
        titles: dict[str, list[str]] = {}
        for name in variants:
            _log.info(f"variant {name}")
            folder = out / "variants" / name
            run(config.run(name), protocol, folder, store)
            for row, section, old in _rows_of(name):
                titles[row] = [VARIANTS[name].title, section]
                results += [
                    replace(r, method=row)
                    for r in read_results(folder / "results.jsonl")
                    if r.method == old or (r.method == "classifier" and section == _HEAD)
                ]
                for dataset, arrays in read_scores(folder / "scores.safetensors").items():
                    scores.setdefault(dataset, {})[row] = arrays[old]
        order = sorted(titles, key=lambda row: titles[row][1] != _HEAD)  # heads first
        results = [r for row in order for r in results if r.method == row]
        twins = {row: _with_center_loss(row) for row in order if _with_center_loss(row) in order}
        results += _tests(order, twins, scores, results)
        summary: JsonObject = {
            "study": "ablate",
            "data": protocol.name,
            "config": asdict(config),
            "titles": {row: titles[row] for row in order},
            "with_center_loss": twins,
            "uses_ood": [row for row in order if titles[row][1] == _HEAD],
            "skipped": {},
            "missing": dict(protocol.missing),
        }
        with summarised(out, summary):
            write_results(out / "results.jsonl", results)
            write_scores(out / "scores.safetensors", scores)
    return results


def _rows_of(variant: str) -> list[tuple[str, str, str]]:
    """(row, section, method of the main job) for each row that the variant gives."""
    rows = [(variant, _HEAD, "goen")]
    if "calibration_ood" not in VARIANTS[variant].changes:
        rows.append((f"{variant}_distance", _DISTANCE, "goen_distance"))
    return rows


def _tests(
    rows: Sequence[str],
    twins: Mapping[str, str],
    scores: Mapping[str, Arrays],
    results: Sequence[Result],
) -> list[Result]:
    by_key = {(r.method, r.dataset): r for r in results if r.metric == "auroc"}

    def p_value(one: str, other: str, dataset: str) -> float:
        test, ood = scores["test"], scores[dataset]
        return paired_auroc_test(
            id_a=test[one], ood_a=ood[one], id_b=test[other], ood_b=ood[other]
        ).p_value

    def found(row: str, dataset: str, metric: str, p: float) -> Result:
        return replace(by_key[row, dataset], metric=metric, value=p, low=None, high=None)

    tests: list[Result] = []
    for dataset in dict.fromkeys(r.dataset for r in by_key.values()):
        others = [row for row in rows if row != "default"]
        p_values = [p_value("default", row, dataset) for row in others]
        for row, p in zip(others, holm(p_values), strict=True):
            tests.append(found(row, dataset, "p_against_default", p))
        for row, with_loss in twins.items():
            p = p_value(with_loss, row, dataset)
            tests.append(found(row, dataset, "p_of_center_loss", p))
    return tests


def _with_center_loss(row: str) -> str:
    """The row's twin with CenterLoss; an empty name if it has none."""
    if "no_center_loss" not in row:
        return ""
    return row.replace("_no_center_loss", "").replace("no_center_loss", "default")
