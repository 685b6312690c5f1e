"""``goen seeds``: one configuration trained with several seeds."""

from dataclasses import asdict, replace
from logging import getLogger
from pathlib import Path

from goen.data.protocol import Protocol
from goen.errors import UsageError
from goen.io.results import Result, write_results
from goen.io.stages import Stages, alone_in, summarised
from goen.studies.methods import METHODS
from goen.studies.networks import EpochRecord, write_epochs
from goen.studies.presets import SEEDS
from goen.studies.rows import summary_of
from goen.studies.run import RunConfig, evaluated_run

_log = getLogger(__name__)


def seeds(
    config: RunConfig,
    protocol: Protocol,
    out: Path | str,
    stages: Stages | None = None,
    *,
    seeds: tuple[int, ...] = SEEDS,
) -> list[Result]:
    """Run ``goen run`` once per seed; all results, in the order of the seeds.

    Only training and calibration change with the seed: the images, their splits and the noise stay
    the same, so the spread is that of training alone. head.jsonl has the epochs of every seed's
    calibration head.

    Args:
        config: of every run; its own seed is not used. Networks are trained from scratch, or
            fine-tuned.
        protocol: the images.
        out: the study's folder; each seed's run is in its ``seeds/``.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
        seeds: the paper's five by default.
    """
    out = Path(out)
    if config.fine_tune == "no":
        config = replace(config, from_scratch=True)  # a linear probe is not drawn at random
    if len(set(seeds)) != len(seeds) or len(seeds) < 2:
        got = " ".join(map(str, seeds)) or "none"
        raise UsageError(f"A spread needs at least two different seeds, got {got}.")
    store = stages or Stages.beside(out)
    with alone_in(out):
        results: list[Result] = []
        epochs: list[EpochRecord] = []
        for seed in seeds:
            _log.info(f"seed {seed}")
            folder = out / "seeds" / str(seed)
            evaluation = evaluated_run(replace(config, seed=seed), protocol, folder, store)
            results += evaluation.results
            epochs += [{**row, "variant": str(seed)} for row in evaluation.head_epochs]
        methods = dict.fromkeys(r.method for r in results if r.metric == "auroc")
        summary = summary_of(
            "seeds",
            asdict(config),
            protocol,
            {key: (METHODS[key].title, "") for key in methods},
            uses_ood=[key for key in methods if METHODS[key].uses_ood],
            seeds=list(seeds),
        )
        with summarised(out, summary):
            write_results(out / "results.jsonl", results)
            write_epochs(out / "head.jsonl", epochs)
    return results
