"""Every method on every network of ours, from results/ alone.

    python recipes/board_page.py --out FOLDER

Networks of CIFAR-10: the ordinary one and GOEN's (presets short and cpu), networks trained for one
method, those of preset fast, those of the bundled gates, and GOEN's at the paper's width; then five
pretrained networks on seven small tasks. The same numbers without a column for each set are in
docs/methods/board.md.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import small_tasks
import tyro
from keep import RESULTS
from pretrained import OUT

from goen.detectors import DETECTORS
from goen.io.results import Origin, Result
from goen.report import write_board
from goen.report.board import board_tables, networks
from goen.report.summary import Study, Summary, read_study
from goen.report.table import Table
from goen.studies import SEEDS
from goen.studies.experiment import AS_PRESET
from goen.studies.methods import METHODS

# Later ones replace what earlier ones measured on the same network and seed.
PREFIXES = ("baselines", "relatives", "bench", "board", "fast", "width")
# Of networks that their authors gave: those in the bundled gates, in half precision.
BUNDLED = {
    "fast-board": "bundled network of preset fast",
    "w16-board": "bundled network of GOEN (preset cpu)",
}
# The rows of an ablation that are methods of the benchmark, whose networks have no CenterLoss.
ABLATED = {"no_center_loss": "goen", "no_center_loss_distance": "goen_distance"}
SMALL_TASKS = "small tasks"


def studies() -> dict[str, Study]:
    """By name: those of CIFAR-10, and one for each pretrained network."""
    found: dict[str, Study] = {}
    for prefix in PREFIXES:
        for seed in SEEDS:
            file = RESULTS / f"{prefix}-{seed}.jsonl"
            if file.is_file():
                found[file.stem] = _as_bench(prefix, read_study(file))
    for prefix, title in BUNDLED.items():
        for file in sorted(RESULTS.glob(f"{prefix}-*.jsonl")):
            found[_bundled_title(title, file.stem.removeprefix(f"{prefix}-"))] = read_study(file)
    return found | pretrained()


def _bundled_title(title: str, name: str) -> str:
    """With the seed, and how many images of each set where these are not all."""
    seed, _, images = name.partition("-of-")
    return f"{title}, seed {seed}" + (f", {images} images of each set" if images else "")


def _as_bench(prefix: str, study: Study) -> Study:
    """What older studies do not record: that of a preset has one network; ablations are methods."""
    if prefix == "fast":
        kinds = dict.fromkeys(study.titles, AS_PRESET)
        return replace(study, summary=replace(study.summary, networks=kinds))
    if prefix == "width":
        results = [
            replace(r, method=ABLATED[r.method]) for r in study.results if r.method in ABLATED
        ]
        titles = {key: (METHODS[key].title, "goen") for key in ABLATED.values()}
        summary = replace(study.summary, titles=titles, uses_ood=frozenset({"goen"}))
        return Study(results, summary)
    return study


# -- pretrained networks ---------------------------------------------------------------------------


def pretrained() -> dict[str, Study]:
    """Each pretrained network as a study: a near and a far set for each small task."""
    text = OUT.joinpath(f"{small_tasks.NAME}.jsonl").read_text(encoding="utf-8")
    made = json.loads(text.splitlines()[0])
    lines = small_tasks.read()
    by_network: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_network.setdefault(line["network"], []).append(line)
    unfit = {t for line in lines for t, found in line["auroc"].items() if found is None}
    return {name: _small_tasks(found, unfit, made) for name, found in by_network.items()}


def _small_tasks(
    lines: Sequence[Mapping[str, Any]], unfit: set[str], made: Mapping[str, Any]
) -> Study:
    titles = {name: name for name in lines[0]["auroc"] if name in DETECTORS and name not in unfit}
    titles[small_tasks.LAST] = "goen_m_last"
    results: list[Result] = []
    for line in lines:
        for title, method in titles.items():
            origin = Origin(method, "given", line["seed"], line["network"], ())
            near, far = line["auroc"][title]
            results += origin.rows(f"{line['task']}: other classes", "near", {"auroc": near})
            results += origin.rows(f"{line['task']}: other sets", "far", {"auroc": far})
    summary = Summary.from_json(
        {
            "study": "bench",
            "data": SMALL_TASKS,
            "config": {"preset": "pretrained", "budget": "linear probe"},
            "titles": {key: [METHODS[key].title, "other"] for key in titles.values()},
            "networks": dict.fromkeys(titles.values(), "given"),
            "versions": made["versions"],
            "hardware": made["hardware"],
        }
    )
    return Study(results, summary)


# -- tables ----------------------------------------------------------------------------------------


def tables() -> dict[str, Table]:
    """The tables of docs/methods/board.md."""
    return {table.name: table for table in board_tables(networks(studies()), whole=False)}


def main(out: Path = Path("board")) -> None:
    """Write the page.

    Args:
        out: its folder.
    """
    print(write_board(studies(), out))


if __name__ == "__main__":
    tyro.cli(main)
