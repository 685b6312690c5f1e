"""Folders of every study, made by hand: numbers that are easy to find again on a page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from goen.io.files import claim_folder
from goen.io.results import Origin, Result, write_results, write_scores
from goen.io.stages import RUN

SETS = {"near-set": "near", "far-set": "far", "noise": "noise"}
VERSIONS = {"python": "3.11", "goen": "0.1"}
LEFT_OUT = {"places": "places/val is not here: it was left out of this test."}


def write(folder: Path, results: list[Result], **summary: Any) -> Path:
    claim_folder(folder, RUN)
    write_results(folder / "results.jsonl", results)
    known = {"data": "digits", "missing": LEFT_OUT, "skipped": {}, "versions": VERSIONS, **summary}
    (folder / "run.json").write_text(json.dumps(known))
    return folder


def _auroc(value: float) -> dict[str, float]:
    return {
        "auroc": value,
        "auroc_low": value - 0.0123,
        "auroc_high": value + 0.0045,
        "aupr_out": value / 2,
        "fpr95_ood_positive": 1 - value,
        "fpr95_id_positive": 1 - value / 2,
    }


def _compared(methods: list[str], *, calibrated: set[str], cost: bool) -> list[Result]:
    found: list[Result] = []
    for number, method in enumerate(methods):
        on = ("calibration:1f",) if method in calibrated else ()
        origin = Origin(method, "full", 42, f"backbone-{number}", ("train:ab",), on, 0.5 + number)
        right = {"accuracy": 0.9 - number / 100, "ece": 0.02, "nll": 0.3, "brier": 0.1}
        # The ablation's rows by distance alone have no classifier of their own: n/a.
        if cost or method in calibrated:
            found += origin.rows("test", "id", right)
        if cost:
            found += origin.rows("test", "id", {"training_seconds": 60.0 * (number + 1)})
        for place, (name, group) in enumerate(SETS.items()):
            seen = method in calibrated and name == "noise"
            value = 0.9371 - 0.0417 * number - 0.0113 * place
            found += origin.rows(name, group, _auroc(value), seen=seen)  # type: ignore[arg-type]
    return found


def bench(folder: Path) -> Path:
    titles = {
        "max_softmax": ["Max softmax", "predictive"],
        "knn": ["KNN", "post-hoc"],
        "goen": ["GOEN", "goen"],
    }
    results = _compared(list(titles), calibrated={"goen"}, cost=True)
    config = {"methods": [], "sets": [], "preset": "auto", "budget": "full", "seed": 42}
    skipped = {"pytorch_ood.KNN": "pytorch-ood cannot be imported."}
    known = {"titles": titles, "uses_ood": ["goen"], "config": config, "skipped": skipped}
    write(folder, results, study="bench", recipe={"width": 8}, **known)
    rng = np.random.default_rng(0)
    sizes = {"test": 40, "near-set": 30, "far-set": 20, "noise": 10}
    scores = {
        name: {method: rng.normal(name != "test", 1, size) for method in titles}
        for name, size in sizes.items()
    }
    write_scores(folder / "scores.safetensors", scores)
    return folder


def ablate(folder: Path) -> Path:
    head, distance = "with the calibrated head", "distance alone"
    long = "concatenation as in the figure, with CenterLoss"
    titles = {
        "default": ["default, with CenterLoss", head],
        "no_center_loss": ["NoCenterLoss", head],
        "concat": [long, head],
        "default_distance": ["default, with CenterLoss", distance],
        "no_center_loss_distance": ["NoCenterLoss", distance],
        "concat_distance": [long, distance],
    }
    heads = [row for row, (_, section) in titles.items() if section == head]
    results = _compared(list(titles), calibrated=set(heads), cost=False)
    tests = [
        replace(r, metric="p_against_default", value=0.01 if r.dataset == "noise" else 0.4)
        for r in results
        if r.metric == "auroc" and r.method != "default"
    ]
    tests += [
        replace(r, metric="p_of_center_loss", value=0.03)
        for r in results
        if r.metric == "auroc" and r.method.startswith("no_center_loss")
    ]
    config = {"variants": [], "preset": "auto", "budget": "full", "seed": 42}
    twins = {"no_center_loss": "default", "no_center_loss_distance": "default_distance"}
    known = {"titles": titles, "uses_ood": heads, "config": config, "with_center_loss": twins}
    return write(folder, results + tests, study="ablate", **known)


def write_head(folder: Path, epochs: list[dict[str, Any]]) -> None:
    lines = [json.dumps({"epoch": number, **row}) + "\n" for number, row in enumerate(epochs)]
    (folder / "head.jsonl").write_text("".join(lines))


def seeds(folder: Path) -> Path:
    found: list[Result] = []
    for number, seed in enumerate((42, 123, 2024)):
        shift = 0.0031 * number**2
        for method in ("classifier", "gate", "max_softmax", "goen_distance", "goen"):
            origin = Origin(method, "full", seed, f"backbone-{seed}", ("train:ab",))
            if method == "classifier":
                right = {"accuracy": 0.97 - shift, "ece": 0.02, "nll": 0.3, "brier": 0.1}
                found += origin.rows("test", "id", right)
            elif method == "gate":
                found += origin.rows("test", "id", {"false_alarm_rate": 0.05 + shift})
                for name, group in SETS.items():
                    found += origin.rows(name, group, {"flagged": 0.8 - shift})  # type: ignore[arg-type]
            else:
                for name, group in SETS.items():
                    found += origin.rows(name, group, _auroc(0.93 - shift))  # type: ignore[arg-type]
    config = {"preset": "auto", "budget": "full", "seed": 42}
    titles = {
        "max_softmax": ["Max softmax", ""],
        "goen_distance": ["GOEN, distance only", ""],
        "goen": ["GOEN", ""],
    }
    known = {"titles": titles, "uses_ood": ["goen"], "seeds": [42, 123, 2024]}
    return write(folder, found, study="seeds", config=config, **known)


def robust(folder: Path) -> Path:
    found: list[Result] = []
    titles = {"max_softmax": ["Max softmax", "predictive"], "knn": ["KNN", "post-hoc"]}
    for method in titles:
        origin = Origin(method, "full", 42, "backbone-1", ("train:ab",))
        for place, corruption in enumerate(("fog", "gaussian_noise", "snow")):
            for severity in range(6):
                harm = 0.0371 * severity * (1 + place)
                numbers = {"accuracy": 0.95 - harm, "ece": 0.01 + harm, "nll": 0.2 + harm}
                numbers |= {"brier": 0.1 + harm, "mean_score": 3 * harm}
                numbers["flagged"] = 0.05 + harm / (1 if method == "knn" else 3)
                dataset = f"{corruption}-{severity}" if severity else "clean"
                if severity or not place:
                    found += origin.rows(dataset, "id", numbers)
    config = {"methods": list(titles), "preset": "auto", "budget": "full", "seed": 42}
    return write(folder, found, study="robust", titles=titles, config=config)


def geometry(folder: Path) -> Path:
    titles = {"default": ["default, with CenterLoss", ""], "no_center_loss": ["NoCenterLoss", ""]}
    measures = {"inter_intra_ratio": 2.5417, "total_top_share": 0.5493, "condition_number": 812.0}
    found: list[Result] = []
    story = []
    for number, variant in enumerate(titles):
        origin = Origin(variant, "full", 42, f"backbone-{number}", ("train:ab",))
        for dataset in ("train", "test"):
            for feature in ("layer2", "z"):
                for kind in ("raw", "unit"):
                    numbers = {
                        f"{feature}/{kind}/{name}": value * (1 + number)
                        for name, value in measures.items()
                    }
                    if feature == "z" and number:
                        # A singular covariance has no condition number, and no result.
                        numbers.pop("z/raw/condition_number", None)
                        numbers["z/raw/nc3"] = 0.7
                    found += origin.rows(dataset, "id", numbers)
        story += [
            {"variant": variant, "epoch": epoch, "loss": 1.0, "inter_intra_ratio": 1.0 + epoch}
            for epoch in range(3)
        ]
    config = {"variants": [], "preset": "auto", "budget": "full", "seed": 42}
    write(folder, found, study="geometry", titles=titles, config=config)
    lines = "".join(json.dumps(row) + "\n" for row in story)
    (folder / "training.jsonl").write_text(lines)
    return folder


STUDIES = {
    "bench": bench,
    "ablate": ablate,
    "seeds": seeds,
    "robust": robust,
    "geometry": geometry,
}
