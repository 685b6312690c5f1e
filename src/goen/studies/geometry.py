"""The shape of each variant's features: what the paper's argument rests on, measured."""

from dataclasses import asdict, dataclass
from logging import getLogger
from math import isfinite
from pathlib import Path

import torch

from goen.data.protocol import Protocol
from goen.errors import unknown
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.geometry import feature_geometry, nearest_mean_agreement
from goen.outputs import Outputs
from goen.runs.manifest import JsonObject
from goen.runs.results import Origin, Result, write_results
from goen.runs.stages import Stages, alone_in, summarised
from goen.studies.ablate import VARIANTS, AblateConfig
from goen.studies.networks import StoryRow, Trained, outputs, train, write_story

_log = getLogger(__name__)

# Variants that differ only in their calibration have the same network.
NETWORK_VARIANTS = tuple(k for k, v in VARIANTS.items() if "calibration_ood" not in v.changes)
FEATURES = ("layer2", "layer4", "z")


@dataclass(frozen=True)
class _Seen:
    """One set as one network sees it."""

    dataset: str
    outputs: Outputs
    labels: torch.Tensor


def geometry(
    config: AblateConfig, protocol: Protocol, out: Path, stages: Stages | None = None
) -> list[Result]:
    """The geometry of every variant's features, on training and test images, raw and normalised.

    Rows have the variant as method, ``train`` or ``test`` as the set, and metrics named
    ``FEATURE/raw/MEASURE`` and ``FEATURE/unit/MEASURE``; a measure that is not finite there is left
    out. training.jsonl has one row per variant and epoch.

    Args:
        config: which variants, and how they are trained.
        protocol: the images.
        out: the study's folder.
        stages: finished work, shared between studies; in out if not given.
    """
    store = stages or Stages(out / "stages")
    for name in config.variants:
        if name not in NETWORK_VARIANTS:
            raise unknown("variant with a network of its own", name, NETWORK_VARIANTS)
    wanted = config.variants or NETWORK_VARIANTS
    variants = [name for name in NETWORK_VARIANTS if name in wanted]
    with alone_in(out):
        results: list[Result] = []
        story: list[StoryRow] = []
        for name in variants:
            _log.info(f"variant {name}")
            preset = config.run(name).preset_for(protocol)
            trained = train(
                preset.network, preset.training, protocol.train, protocol.calibration_id, store
            )
            story += [{"variant": name, **row} for row in trained.story]
            origin = Origin(
                method=name,
                budget=config.budget,
                seed=config.seed,
                network=trained.key,
                fitted_on=tuple(images.identity for images in trained.trained_on),
            )
            for dataset, images in {"train": protocol.train, "test": protocol.test}.items():
                said, _ = outputs(trained.network, trained.key, images, store, features=FEATURES)
                seen = _Seen(dataset, said, torch.from_numpy(images.labels))
                results += _rows(origin, trained, seen)
        summary: JsonObject = {
            "study": "geometry",
            "data": protocol.name,
            "config": asdict(config),
            "titles": {name: [VARIANTS[name].title, ""] for name in variants},
            "skipped": {},
            "missing": dict(protocol.missing),
        }
        with summarised(out, summary):
            write_results(out / "results.jsonl", results)
            write_story(out / "training.jsonl", story)
    return results


def _rows(origin: Origin, trained: Trained, seen: _Seen) -> list[Result]:
    results: list[Result] = []
    weight = trained.network.classifier.state_dict()["weight"]
    for feature in FEATURES:
        rows = seen.outputs.features[feature]
        for kind, values in {"raw": rows.double(), "unit": normalise(rows)}.items():
            statistics = ClassStatistics(seen.outputs.logits.shape[1], values.shape[1])
            statistics.update(values, seen.labels)
            # The classifier reads z as it is (for concat: the same scales, not normalised).
            own = weight if feature == "z" and weight.shape[1] == values.shape[1] else None
            found = asdict(feature_geometry(statistics, own))
            if feature == "z":
                logits = seen.outputs.logits
                found["nc4"] = nearest_mean_agreement(values, logits, statistics.means_)
            numbers = {
                f"{feature}/{kind}/{name}": value
                for name, value in found.items()
                if value is not None and isfinite(value) and not name.startswith(("num_", "dim"))
            }
            results += origin.rows(seen.dataset, "id", numbers)
    return results
