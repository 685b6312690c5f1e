"""Write the tables of docs/: results, methods, pretrained networks, monitor; nothing by hand.

    python recipes/page.py

A table is between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. It is made from results/ or,
for the bundled gate, from the numbers published with it; the text around it is written by hand. A
test compares the pages with the output of this script.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import board_page
import boxes
import declared_shift
import ensembles
import error_rate
import error_rate_cifar10
import few_images
import flagged_groups
import monitor_cifar10
import monitor_properties
import monitor_simulation
import numpy as np
import options
import pretrained
import pretrained_sizes
import small_tasks
from paired import MEAN, PAIRS, read_lines
from scipy.stats import ttest_1samp
from sets import PAPER_SETS, UNSEEN, UNTOUCHED

from goen.io.results import Result, read_results
from goen.metrics import over_seeds
from goen.report.page import study_tables
from goen.report.paper_tables import paper_tables, read_papers_study
from goen.report.summary import Summary
from goen.report.table import Cell, Row, Table, markdown, marked
from goen.studies import SEEDS
from goen.studies.methods import METHODS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "cifar10"
PAGES = tuple(
    ROOT / "docs" / name
    for name in (
        "results.md",
        "results-details.md",
        "methods/goen-m.md",
        "methods/board.md",
        "monitor.md",
        "flagged.md",
        "guarantee.md",
        "error-rate.md",
        "boxes.md",
        "pretrained.md",
    )
)
BUNDLED = ROOT / "src" / "goen" / "gate" / "bundled"
BEST = "cifar10-ensemble"
GATE = BUNDLED / BEST / "published.json"
# Of gates that are not bundled, and of other seeds.
GATES = ROOT / "results" / "gates"
BENCHED = {
    "goen_distance": "GOEN, distance only",
    "goen": "GOEN, the paper's head",
    "knn_multi_scale": "KNN on z",
    "goen_m_ood": "goen-m, fitted with SVHN and noise",
    "goen_m": "goen-m",
}
FLIP_AVERAGED = {
    f"{method}_flip_averaged": f"{title}, flip-averaged" for method, title in BENCHED.items()
}

ABLATED = {
    "default": ("with CenterLoss", "with the calibrated head"),
    "no_center_loss": ("without CenterLoss", "with the calibrated head"),
    "single_scale_no_center_loss": ("without, layer 4 alone", "with the calibrated head"),
    "no_svhn_no_center_loss": ("without, calibrated with noise alone", "with the calibrated head"),
    "default_distance": ("with CenterLoss", "distance alone"),
    "no_center_loss_distance": ("without CenterLoss", "distance alone"),
    "single_scale_no_center_loss_distance": ("without, layer 4 alone", "distance alone"),
}

# The paper's own ablation: each factor with CenterLoss.
AS_PUBLISHED = {
    "default": ("GOEN-Default: with CenterLoss", "with the calibrated head"),
    "no_center_loss": ("NoCenterLoss", "with the calibrated head"),
    "single_scale": ("SingleScale-L4, with CenterLoss", "with the calibrated head"),
    "no_svhn": ("NoSVHN-NoiseOnly, with CenterLoss", "with the calibrated head"),
    "default_distance": ("GOEN-Default: with CenterLoss", "distance alone"),
    "no_center_loss_distance": ("NoCenterLoss", "distance alone"),
    "single_scale_distance": ("SingleScale-L4, with CenterLoss", "distance alone"),
}

# The study of each width, and its rows.
WIDTHS = {"width 16 (preset short)": "ablate", "width 64 (preset wide-bf16)": "width"}
BY_WIDTH = {
    "default": "the paper's head, with CenterLoss",
    "no_center_loss": "the paper's head, without",
    "default_distance": "distance alone, with CenterLoss",
    "no_center_loss_distance": "distance alone, without",
}

TRAINED_AS = {"standard": "an ordinary network", "goen": "GOEN's network"}

# Methods with a classification of their own: title, and name in the paper.
CLASSIFIERS = {
    "max_softmax": ("ordinary network (softmax, and post-hoc methods)", "StandardNN"),
    "temperature_scaling": ("temperature scaling", "TempScaling"),
    "mc_dropout": ("MC dropout", "MCDropout"),
    "deep_ensemble": ("deep ensemble", "Deep Ensemble"),
    "evidential": ("evidential", "EDL"),
    "epinet": ("EpiNet", "EpiNet"),
    "mixture_of_experts": ("mixture of experts", "MoE-K5"),
    "goen": ("GOEN's network", "GOEN"),
}
# Their line in the paper's Table 1, and whether more is better.
ID_METRICS = {
    "accuracy": ("ID Acc", True),
    "ece": ("ID ECE", False),
    "nll": ("ID NLL", False),
    "brier": ("ID Brier", False),
}

FITTED = ("weights fitted with", "monotone network fitted with")

Lines = list[dict[str, Any]]


def seeds_table(
    name: str, studies: Mapping[int, Sequence[Result]], titles: Mapping[str, tuple[str, str]]
) -> Table:
    """AUROC of each row (title and section) and set, mean and standard deviation over seeds."""
    values = {
        (r.method, r.dataset, seed): r
        for seed, results in studies.items()
        for r in results
        if r.metric in ("auroc", "accuracy")
    }
    first = next(iter(studies.values()))
    sets = list(dict.fromkeys(r.dataset for r in first if r.metric == "auroc"))
    leading: dict[str, Sequence[str]] = {"unseen": UNSEEN} | {n: [n] for n in UNSEEN}
    if "cifar100-rest" in sets:  # two images fewer than the other fifty classes
        leading["cifar100, all"] = ("cifar100", "cifar100-rest")
    leading["accuracy"] = ["test"]
    seen = [n for n in PAPER_SETS if n not in UNSEEN]
    columns = leading | {n: [n] for n in seen} | {"paper's three": PAPER_SETS}

    def cell(method: str, names: Sequence[str]) -> Cell:
        seeds = [seed for seed in studies if (method, names[0], seed) in values]
        if not seeds:
            return Cell(text="–")  # the classifier has no row of its own for the distance alone
        found = [fmean(values[method, n, seed].value for n in names) for seed in seeds]
        seen = any(values[method, n, seed].seen_in_calibration for n in names for seed in seeds)
        spread = over_seeds(found).sd if len(found) > 1 else None
        return Cell(fmean(found), spread=spread, seen=seen)

    by_column = {title: [cell(m, names) for m in titles] for title, names in columns.items()}
    for title, cells in by_column.items():
        if title != "accuracy":  # of the network, which rows share
            by_column[title] = _marked(cells)
    rows = [
        Row(title, tuple(cells), section)
        for (title, section), cells in zip(
            titles.values(), zip(*by_column.values(), strict=True), strict=True
        )
    ]
    notes = (
        "±: the standard deviation over seeds; a row without it has one seed. Unseen: the mean of "
        f"{', '.join(UNSEEN)}. †: calibrated with other images of this kind, or of one of these; "
        "such a number is never bold, nor is one of a single seed beside means. ≈: several rows "
        "have the best number.",
    )
    seeds = f"seed{'s' * (len(studies) > 1)} {', '.join(map(str, studies))}"
    title = f"AUROC, {seeds}"
    return Table(name, title, tuple(columns), tuple(rows), notes, apart=len(leading))


def _marked(cells: Sequence[Cell]) -> list[Cell]:
    """The best marked, among the means over several seeds where there are such."""
    if all(cell.spread is None for cell in cells):
        return marked(cells, higher_is_better=True)
    means = iter(marked([c for c in cells if c.spread is not None], higher_is_better=True))
    return [cell if cell.spread is None else next(means) for cell in cells]


def classifiers_table() -> Table:
    """Accuracy and calibration of each classifier on ID images; the paper's numbers beside them."""
    results = read_results(RESULTS / "baselines-42.jsonl")
    found = {(r.method, r.metric): r.value for r in results if r.dataset == "test"}
    published = paper_tables([])[0]
    lines = {r.label: dict(zip(published.columns, r.cells, strict=True)) for r in published.rows}
    columns: dict[str, list[Cell]] = {}
    for metric, (line, higher) in ID_METRICS.items():
        ours = [Cell(found[method, metric]) for method in CLASSIFIERS]
        theirs = [replace(lines[line][name], mark="") for _, name in CLASSIFIERS.values()]
        for title, cells in ((line, ours), (f"paper: {line}", theirs)):
            columns[title.replace("ID ", "")] = marked(cells, higher_is_better=higher)
    order = sorted(columns, key=lambda title: title.startswith("paper"))
    rows = [
        Row(title, tuple(columns[name][place] for name in order))
        for place, (title, _) in enumerate(CLASSIFIERS.values())
    ]
    notes = (
        "10,000 test images, preset short. ECE of 15 bins. Bold: best of its column. Set apart at "
        "the right: the paper's Table 1 (width 64, up to 100 epochs, 40 for GOEN, stopped early), "
        "which has no calibration of GOEN.",
    )
    title = "The classifiers on ID images, seed 42"
    return Table("classifiers", title, tuple(order), tuple(rows), notes, apart=len(ID_METRICS))


def corrupted_table(study: str) -> Table:
    """Accuracy and calibration of each classifier by severity, mean over the corruptions."""
    studies = studies_by_seed(study)
    found: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for seed, results in studies.items():
        for r in results:
            severity = r.dataset.rpartition("-")[2]  # "clean" has none
            by_seed = found.setdefault((r.method, r.metric, severity), {})
            by_seed.setdefault(seed, []).append(r.value)
    severities = list(dict.fromkeys(severity for _, _, severity in found))
    methods = [m for m in CLASSIFIERS if any(m == method for method, _, _ in found)]
    rows: list[Row] = []
    for metric, (line, higher) in ID_METRICS.items():
        columns = []
        for severity in severities:
            means = [[fmean(v) for v in found[m, metric, severity].values()] for m in methods]
            spreads = [over_seeds(one).sd if len(one) > 1 else None for one in means]
            pairs = zip(means, spreads, strict=True)
            cells = [Cell(fmean(one), spread=spread) for one, spread in pairs]
            several = len(methods) > 1
            columns.append(marked(cells, higher_is_better=higher) if several else cells)
        lines = zip(methods, zip(*columns, strict=True), strict=True)
        rows += [Row(CLASSIFIERS[m][0], tuple(c), line.removeprefix("ID ")) for m, c in lines]
    summary = RESULTS / f"{study}-{next(iter(studies))}.json"
    config = json.loads(summary.read_text(encoding="utf-8"))["config"]
    preset = "cpu" if config["preset"] == "auto" else config["preset"]
    notes = (
        f"Preset {preset}, {config['images'] or 10_000:,} test images, mean over fifteen "
        "corruptions. ECE of 15 bins.",
    )
    names = tuple(s if s == "clean" else f"severity {s}" for s in severities)
    seeds = ", ".join(map(str, studies))
    title = f"The classifiers under corruption, seed{'s' * (len(studies) > 1)} {seeds}"
    return Table(f"{study}-classifiers", title, names, tuple(rows), notes)


def paired_table(name: str) -> Table:
    """The mean over unseen sets of one row and of another, seed by seed, and over seeds."""
    lines = [line for line in read_lines(RESULTS / f"{name}.jsonl") if line["dataset"] == MEAN]
    rows = []
    for pair in PAIRS[name]:
        mine = [r for r in lines if (r["method"], r["against"]) == (pair.ours, pair.against)]
        for line in mine:
            cells = (
                Cell(line["auroc"]),
                Cell(line["auroc_against"]),
                Cell(line["value"], "+.4f", low=line["low"], high=line["high"]),
                _p_value(line["p_value"]),
            )
            rows.append(Row(f"seed {line['seed']}", cells, pair.title))
        if len(mine) > 2:
            found = np.array([[r["auroc"], r["auroc_against"], r["value"]] for r in mine])
            test = ttest_1samp(found[:, 2], 0)
            low, high = test.confidence_interval()
            ours, other, difference = found.mean(axis=0)
            last = Cell(difference, "+.4f", low=low, high=high)
            cells = (Cell(ours), Cell(other), last, _p_value(test.pvalue))
            rows.append(Row("over seeds", cells, pair.title))
    columns = ("AUROC", "of the other", "difference (95 %)", "p")
    title = "Mean AUROC over unseen sets, two rows on the same images"
    notes = (
        "A seed's interval is over images (DeLong), that over seeds is Student's with as many "
        "differences as seeds: the uncertainty of the mean over trainings.",
    )
    return Table(name, title, columns, tuple(rows), notes)


def _p_value(p: float) -> Cell:
    if p >= 0.001:
        return Cell(p, ".3f")
    return Cell(text="< 1e-300") if p < 1e-300 else Cell(p, ".0e")


def published(file: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The numbers of a gate by dataset and metric."""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return {(row["dataset"], row["metric"]): row for row in rows}


def gate_table(name: str) -> Table:
    """The numbers of a bundled gate, from the file that goen check compares with."""
    by_key = published(BUNDLED / name / "published.json")

    def line(label: str, names: Sequence[str]) -> Row:
        found = [by_key[n, "auroc"] for n in names]
        one = found[0] if len(names) == 1 else {"low": None, "high": None}
        flagged = fmean(by_key[n, "flagged"]["value"] for n in names)
        return Row(
            label,
            (
                Cell(fmean(row["value"] for row in found), low=one["low"], high=one["high"]),
                Cell(fmean(by_key[n, "fpr95_ood_positive"]["value"] for n in names)),
                Cell(flagged, ".1%"),
            ),
        )

    test = Row(
        "CIFAR-10 test",
        (Cell(text="–"), Cell(text="–"), Cell(by_key["test", "flagged"]["value"], ".1%")),
    )
    rows = [
        line("mean of the datasets not used for model selection", UNTOUCHED),
        *(line(name, [name]) for name in UNTOUCHED),
        line("mean of SVHN, CIFAR-100 and noise", PAPER_SETS),
        *(line(name, [name]) for name in PAPER_SETS),
        *(line(name, [name]) for name in ("cifar100-rest",) if (name, "auroc") in by_key),
    ]
    accuracy = by_key["test", "accuracy"]["value"]
    title = f"The gate {name}: accuracy {accuracy:.2%} on 10,000 test images"
    columns = ("AUROC (95 %)", "FPR95", "flagged at 5 %")
    return Table("gate", title, columns, (test, *rows))


NEAR = (("cifar100", "cifar100-rest"), ("tiny-imagenet",))
FAR = (("mnist",), ("svhn",), ("textures",), ("places",))
GROUPS: Mapping[str, Sequence[Sequence[str]]] = {
    "paper's three": tuple((name,) for name in PAPER_SETS),
    "not used for selection": tuple((name,) for name in UNTOUCHED),
    "near": NEAR,
    "far": FAR,
}


def gates_by_seed() -> dict[str, list[dict[str, float]]]:
    """AUROC by set, and the accuracy (``test``), of each gate of recipes/gate.py, seed by seed."""
    files: dict[str, list[Path]] = {
        "cifar10-w16": [],
        "cifar10-fast": sorted(GATES.glob("cifar10-fast-*/published.json")),
        BEST: [GATE, *sorted(GATES.glob(f"{BEST}-[0-9]*/published.json"))],
        f"{BEST}-bf16": sorted(GATES.glob(f"{BEST}-bf16-*/published.json")),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in files}
    for results in studies_by_seed("bench").values():
        mine = [r for r in results if r.method == "goen_m_flip_averaged"]
        values = {r.dataset: r.value for r in mine if r.metric == "auroc"}
        accuracy = next(r.value for r in mine if r.metric == "accuracy")
        found["cifar10-w16"].append({"test": accuracy, **values})
    for name, of_gate in files.items():
        for by_key in map(published, of_gate):
            values = {s: row["value"] for (s, m), row in by_key.items() if m == "auroc"}
            found[name].append({"test": by_key["test", "accuracy"]["value"], **values})
    return found


def _title(gate: str, seeds: int) -> str:
    return f"{gate}, {'one seed' if seeds == 1 else f'{seeds} seeds'}"


def gates_table() -> Table:
    """The recipes of recipes/gate.py, each with the networks of three seeds."""

    def cell(seeds: list[dict[str, float]], parts: Sequence[Sequence[str]]) -> Cell:
        means = [fmean(fmean(seed[n] for n in part) for part in parts) for seed in seeds]
        return Cell(fmean(means), spread=over_seeds(means).sd if len(means) > 1 else None)

    columns = {"accuracy": (("test",),), **GROUPS}
    rows = [
        Row(_title(name, len(seeds)), tuple(cell(seeds, parts) for parts in columns.values()))
        for name, seeds in gates_by_seed().items()
    ]
    notes = (
        "Mean ± standard deviation over the networks of these seeds; the bundled gates are those "
        "of seed 42. The three ensembles are the pairs of the same three networks, and differ by "
        "less than three pairs of six networks would. Near and far as the OpenOOD board counts "
        "them: near is the mean of CIFAR-100 (of its two halves, one of which selected the cues) "
        "and Tiny ImageNet, far that of MNIST, SVHN, textures and places.",
    )
    return Table("gates", "The gates over seeds: AUROC", tuple(columns), tuple(rows), notes)


def titles_of(study: str) -> dict[str, tuple[str, str]]:
    """The methods of a study on one network: title and section."""
    found = {r.method for results in studies_by_seed(study).values() for r in results}
    return {key: (m.title, "") for key, m in METHODS.items() if key in found}


def geometry_table(results: Sequence[Result]) -> Table:
    """What CenterLoss and the number of scales do to z on training images."""
    values = {(r.method, r.metric): r.value for r in results if r.dataset == "train"}
    measures = {
        "inter_intra_ratio": ("between classes / within", ".2f"),
        "total_top_share": ("first principal component", ".1%"),
        "nc1": ("NC1", ".2f"),
        "condition_number_ridged": ("condition number with ridge", ".0f"),
    }
    variants = {name: title for name, (title, section) in ABLATED.items() if "head" in section}
    rows = [
        Row(
            title,
            tuple(Cell(values[name, f"z/{kind}/{m}"], form) for m, (_, form) in measures.items()),
            words,
        )
        for kind, words in (("raw", "z"), ("unit", "z scaled to unit length"))
        for name, title in variants.items()
        if (name, f"z/{kind}/nc1") in values
    ]
    title = f"Geometry of z, training images, seed {results[0].seed}"
    return Table("geometry", title, tuple(t for t, _ in measures.values()), tuple(rows))


def exploration_table(studies: Mapping[int, Lines]) -> Table:
    """Each candidate's mean AUROC over the sets for model selection, and over those reported."""
    first = next(iter(studies.values()))
    groups = {
        "SVHN*": ("svhn*",),
        "CIFAR-100*": ("cifar100*",),
        "noise*": ("noise*",),
        "mean*": ("svhn*", "cifar100*", "noise*"),
        "paper's three": PAPER_SETS,
        "not used for selection": UNTOUCHED,
    }
    values = {
        (line["candidate"], line["dataset"], seed): line["value"]
        for seed, lines in studies.items()
        for line in lines
    }

    def cell(candidate: str, names: Sequence[str]) -> Cell:
        if (candidate, names[0], next(iter(studies))) not in values:
            return Cell(text="–")
        mean = fmean(values[candidate, n, seed] for n in names for seed in studies)
        shown = section(candidate)[1] if section(candidate)[0] in FITTED else ""
        return Cell(mean, seen=any(n.rstrip("*") in shown.lower() for n in names if "*" in n))

    def section(title: str) -> tuple[str, str]:
        head, colon, tail = title.partition(": ")
        return (head, tail) if colon and head != "goen-m" else ("the mean of these cues", title)

    titles = list(dict.fromkeys(line["candidate"] for line in first))
    rows = [
        Row(section(t)[1], tuple(cell(t, names) for names in groups.values()), section(t)[0])
        for t in titles
    ]
    notes = (
        "*: sets for model selection (SVHN's calibration images, the other fifty classes of "
        "CIFAR-100, other noise), against calibration images. The last two columns, against test "
        "images, were computed after the choice. Fusions and weights are over the cues of goen-m. "
        "†: fitted with the same images; the calibration images are the ID side of every fit.",
    )
    title = f"AUROC of candidates, mean over seeds {', '.join(map(str, studies))}"
    return Table("goen-m", title, tuple(groups), tuple(rows), notes)


def study(name: str, kind: str) -> Table:
    """A table of the study itself."""
    content = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    results = read_results(RESULTS / f"{name}.jsonl")
    tables = study_tables(results, Summary.from_json(content))
    return next(t for t in tables if t.name == kind)


def files_by_seed(prefix: str) -> dict[int, Path]:
    """The files ``PREFIX-SEED.jsonl``, in the order of the paper's seeds."""
    files = {int(f.stem.rsplit("-", 1)[1]): f for f in RESULTS.glob(f"{prefix}-[0-9]*.jsonl")}
    return {seed: files[seed] for seed in sorted(files, key=SEEDS.index)}


def studies_by_seed(prefix: str) -> dict[int, list[Result]]:
    """The results of a study, by seed."""
    return {seed: read_results(file) for seed, file in files_by_seed(prefix).items()}


def benchmarks() -> dict[int, list[Result]]:
    """The results of recipes/bench.sh and recipes/flip_averaged.py, by seed."""
    plain, averaged = studies_by_seed("bench"), studies_by_seed("flip-averaged")
    if list(plain) != list(averaged):
        raise SystemExit(f"bench has the seeds {list(plain)}, flip-averaged {list(averaged)}.")
    return {
        seed: [r for r in plain[seed] if r.method in BENCHED] + averaged[seed] for seed in plain
    }


def by_network(prefix: str) -> tuple[dict[int, list[Result]], dict[str, tuple[str, str]]]:
    """The results of a benchmark by seed, and each method's title and kind of network."""
    studies = studies_by_seed(prefix)
    found = {r.method for results in studies.values() for r in results}
    titles = {
        key: (method.title, TRAINED_AS.get(method.network, "networks of their own"))
        for key, method in METHODS.items()
        if key in found
    }
    return studies, titles


def width_table() -> Table:
    """GOEN's network at two widths, for the seeds of the larger one."""
    studies = {
        seed: [
            replace(r, method=f"{r.method}, {width}")
            for width, name in WIDTHS.items()
            for r in read_results(RESULTS / f"{name}-{seed}.jsonl")
            if r.method in BY_WIDTH
        ]
        for seed in files_by_seed("width")
    }
    titles = {
        f"{method}, {width}": (title, width)
        for width in WIDTHS
        for method, title in BY_WIDTH.items()
    }
    return seeds_table("width", studies, titles)


def papers_table(name: str) -> Table:
    """A table of the paper, its numbers above those of the studies that were run for it."""
    by_seed = (*files_by_seed("table1").values(), *files_by_seed("table2").values())
    files = (*by_seed, RESULTS / "table3.jsonl")
    found = paper_tables(read_papers_study(file) for file in files if file.is_file())
    return next(t for t in found if t.name == name)


def table(name: str) -> Table:
    """The table of this name."""
    if name.startswith("paper-table-"):
        return papers_table(name)
    if name in ("flagged", "shift"):
        return (flagged_groups.tables() | declared_shift.tables())[name]
    if name.startswith("monitor-"):
        monitors = (monitor_simulation, monitor_cifar10, monitor_properties)
        return next(t for m in monitors for n, t in m.tables().items() if n == name)
    if name == "boxes-simulation":
        return boxes.table()
    if name == "error-rate-simulation":
        return error_rate.table()
    if name.startswith("error-rate-"):
        return error_rate_cifar10.tables()[name]
    if name.startswith("small-tasks"):
        return small_tasks.tables()[name]
    if name.startswith(("pretrained-", "few-images")):
        return (pretrained.tables() | pretrained_sizes.tables() | few_images.tables())[name]
    if name.startswith("board"):
        return board_page.tables()[name]
    if name in ("options", "options-full"):
        return options.tables()[name]
    if name in ("ensembles", "ensembles-bf16"):
        return ensembles.table("fast" if name == "ensembles" else "fast-bf16")
    if name == "seeds":
        titles = {m: (title, "without flip averaging") for m, title in BENCHED.items()}
        titles |= {m: (title, "with flip averaging") for m, title in FLIP_AVERAGED.items()}
        return seeds_table(name, benchmarks(), titles)
    if name == "ablation":
        return seeds_table(name, studies_by_seed("ablate"), ABLATED)
    if name == "table2":
        studies = studies_by_seed(name)
        measured = {r.method for results in studies.values() for r in results}
        return seeds_table(name, studies, {m: t for m, t in AS_PUBLISHED.items() if m in measured})
    if name == "width":
        return width_table()
    if name in ("baselines", "relatives"):
        return seeds_table(name, *by_network(name))
    if name == "classifiers":
        return classifiers_table()
    if name.endswith("-classifiers"):
        return corrupted_table(name.removesuffix("-classifiers"))
    if name == "geometry":
        return geometry_table(read_results(RESULTS / "geometry-42.jsonl"))
    if name in PAIRS:
        return paired_table(name)
    if name in ("gate", "gate-w16"):
        return gate_table(BEST if name == "gate" else "cifar10-w16")
    if name == "gates":
        return gates_table()
    if name in ("fast", "densities"):
        return seeds_table(name, studies_by_seed(name), titles_of(name))
    if name == "goen-m":
        return exploration_table({s: read_lines(f) for s, f in files_by_seed("goen-m").items()})
    folder, _, kind = name.partition("/")
    return study(folder, kind)


def rendered(text: str) -> str:
    """The page with every table as results/ has it."""

    def block(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n{markdown(table(name))}<!-- end {name} -->"

    return re.sub(r"<!-- begin (\S+) -->\n.*?<!-- end \1 -->", block, text, flags=re.DOTALL)


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
