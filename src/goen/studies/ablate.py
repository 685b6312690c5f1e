"""``goen ablate``: the paper's variants, and each factor by itself where it changes two at once."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Literal

from goen.checks import check_choice
from goen.data.protocol import Protocol
from goen.errors import UsageError
from goen.io.results import Result, write_results, write_scores
from goen.io.stages import Stages, alone_in, summarised
from goen.studies.experiment import TrainingOptions
from goen.studies.gate_evaluation import GateEvaluation
from goen.studies.rows import Arrays, paired_tests, summary_of
from goen.studies.run import RunConfig, evaluated_run

_log = getLogger(__name__)

CENTER_LOSS = 0.01
_SECTIONS = {"goen": "with the calibrated head", "goen_distance": "distance alone"}


@dataclass(frozen=True)
class Variant:
    """One row of the ablation: the options of ``goen run`` that it changes."""

    title: str
    representation: Literal["multi_scale", "single_scale", "concat"] = "multi_scale"
    center_loss: float = 0.0
    calibration_ood: Literal["all", "noise"] = "all"

    @property
    def has_own_network(self) -> bool:
        """Variants that differ only in their calibration share a network."""
        return self.calibration_ood == "all"

    def protocol_for(self, protocol: Protocol) -> Protocol:
        """The protocol with the OOD sets that calibrate this variant.

        Raises:
            UsageError: none of them does.
        """
        sets = protocol.calibration_ood
        kept = {n: images for n, images in sets.items() if self.calibration_ood in ("all", n)}
        if not kept:
            raise UsageError(
                f"The variant {self.title!r} calibrates its head with noise or more, and the sets "
                f"that calibrate are: {' '.join(sets) or 'none'}. Name others with "
                "--calibration-ood, or leave the variant out."
            )
        return replace(protocol, calibration_ood=kept)


VARIANTS: Mapping[str, Variant] = {
    "default": Variant("default, with CenterLoss", "multi_scale", CENTER_LOSS),
    "no_center_loss": Variant("NoCenterLoss"),
    "single_scale": Variant("SingleScale-L4, with CenterLoss", "single_scale", CENTER_LOSS),
    "single_scale_no_center_loss": Variant("SingleScale-L4", "single_scale"),
    "no_svhn": Variant(
        "NoSVHN (calibrated with noise alone), with CenterLoss", "multi_scale", CENTER_LOSS, "noise"
    ),
    "no_svhn_no_center_loss": Variant(
        "NoSVHN (calibrated with noise alone)", calibration_ood="noise"
    ),
    "concat": Variant("concatenation as in the figure, with CenterLoss", "concat", CENTER_LOSS),
    "concat_no_center_loss": Variant("concatenation as in the figure", "concat"),
}
"""The paper's four are default, no_center_loss, single_scale and no_svhn."""


@dataclass(frozen=True)
class AblateConfig(TrainingOptions):
    """What goen ablate does.

    Attributes:
        variants: by name; all if none is given: no_center_loss, single_scale,
            single_scale_no_center_loss, concat, concat_no_center_loss and, not in goen geometry,
            no_svhn and no_svhn_no_center_loss. default is always included.
    """

    variants: tuple[str, ...] = ()

    def chosen(self, known: Collection[str] = VARIANTS, what: str = "variant") -> list[str]:
        """The variants to train, ``default`` among them."""
        for name in self.variants:
            check_choice(what, name, known)
        wanted = {"default", *(self.variants or known)}
        return [name for name in known if name in wanted]

    def run(self, variant: str) -> RunConfig:
        """The configuration of ``goen run`` for this variant."""
        chosen = VARIANTS[variant]
        return RunConfig(
            from_scratch=True,
            representation=chosen.representation,
            center_loss=chosen.center_loss,
            preset=self.preset,
            budget=self.budget,
            seed=self.seed,
            device=self.device,
            precision=self.precision,
        )


def ablate(
    config: AblateConfig, protocol: Protocol, out: Path | str, stages: Stages | None = None
) -> list[Result]:
    """Run ``goen run`` for every variant, and compare the variants on the same images.

    Every variant has two rows, with its head and by its distance alone; variants that differ only
    in their calibration have the same distance, which has one row. Each OOD set has two kinds of
    paired test: ``p_against_default`` (Holm's correction over the variants) and, where a variant
    exists with and without CenterLoss, ``p_of_center_loss`` in the row without.

    Args:
        config: what to do.
        protocol: the images.
        out: the study's folder; each variant's run is in its ``variants/``.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
    """
    out = Path(out)
    protocols = {name: VARIANTS[name].protocol_for(protocol) for name in config.chosen()}
    store = stages or Stages.beside(out)
    with alone_in(out):
        runs: dict[str, GateEvaluation] = {}
        for name, sets in protocols.items():
            _log.info(f"variant {name}")
            folder = out / "variants" / name
            runs[name] = evaluated_run(config.run(name), sets, folder, store)
        # By the key of the row: the variant, and the method of its run.
        rows = {name: (name, "goen") for name in protocols}
        alone = [name for name in protocols if VARIANTS[name].has_own_network]
        rows |= {f"{name}_distance": (name, "goen_distance") for name in alone}
        results = [
            replace(r, method=key)
            for key, (variant, method) in rows.items()
            for r in runs[variant].results
            if r.method == method or (r.method == "classifier" and method == "goen")
        ]
        scores = {
            dataset: {
                key: runs[name].scores[dataset][method] for key, (name, method) in rows.items()
            }
            for dataset in runs["default"].scores
        }
        twins = {key: _with_center_loss(key) for key in rows if _with_center_loss(key) in rows}
        results += _tests(twins, scores, results)
        summary = summary_of(
            "ablate",
            asdict(config),
            protocol,
            {
                key: (VARIANTS[name].title, _SECTIONS[method])
                for key, (name, method) in rows.items()
            },
            with_center_loss=twins,
            uses_ood=[key for key, (_, method) in rows.items() if method == "goen"],
        )
        with summarised(out, summary):
            write_results(out / "results.jsonl", results)
            write_scores(out / "scores.safetensors", scores)
    return results


def _tests(
    twins: Mapping[str, str], scores: Mapping[str, Arrays], results: Sequence[Result]
) -> list[Result]:
    tests: list[Result] = []
    areas = [r for r in results if r.metric == "auroc"]
    for dataset in dict.fromkeys(r.dataset for r in areas):
        here = {r.method: r for r in areas if r.dataset == dataset}
        others = [r for r in here.values() if r.method != "default"]
        tests += paired_tests(here["default"], others, scores, "p_against_default")
        for row, with_loss in twins.items():
            tests += paired_tests(here[with_loss], [here[row]], scores, "p_of_center_loss")
    return tests


def _with_center_loss(row: str) -> str:
    """The same row with CenterLoss; empty if this one has it."""
    if "no_center_loss" not in row:
        return ""
    return row.replace("_no_center_loss", "").replace("no_center_loss", "default")
