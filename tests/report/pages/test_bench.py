"""Tables and pages of ``goen bench`` and ``goen ablate``."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from goen.io.results import Group, Origin, Result, read_results
from goen.report import write_report
from goen.report.blocks import Drawing, Page
from goen.report.page import study_tables
from goen.report.pages.bench import ablate_page, ablate_tables, bench_page, bench_tables
from goen.report.run_folder import RunFolder, read_run
from goen.report.summary import Summary, read_study
from goen.report.table import Cell, Table
from tests.report.by_hand import ablate, bench
from tests.report.reading import methods_by_title, page_text, plain, tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")

SETS: dict[str, Group] = {
    "svhn": "far",
    "cifar100": "near",
    "noise": "noise",
    "tiny-imagenet": "near",
    "mnist": "far",
    "places": "far",
}
SEEN = ("svhn", "noise")
AUROC = {
    "max_softmax": (0.80, 0.70, 0.90, 0.61, 0.71, 0.81),
    "goen": (0.90, 0.60, 1.00, 0.62, 0.72, 0.82),
    "knn": (0.85, 0.75, 0.95, 0.63, 0.73, 0.80),
}
P_VALUES = {("max_softmax", "svhn"): 0.01, ("max_softmax", "places"): 0.2, ("knn", "places"): 0.01}


def results(*, seen: bool = True) -> list[Result]:
    found = []
    for method, values in AUROC.items():
        network = "other" if method == "goen" else "net"
        origin = Origin(method, "full", 42, network, ("train:1",), (), 1.25)
        accuracy = 0.8 if method == "goen" else 0.9
        numbers = {"accuracy": accuracy, "ece": 0.02, "nll": 0.3, "brier": 0.1}
        found += origin.rows("test", "id", {**numbers, "training_seconds": 60})
        for (name, group), value in zip(SETS.items(), values, strict=True):
            measured = {
                "auroc": value,
                "auroc_low": value - 0.01,
                "auroc_high": value + 0.01,
                "aupr_out": value / 2,
                "fpr95_ood_positive": 1 - value,
                "fpr95_id_positive": 1 - value / 2,
            }
            calibrated = seen and name in SEEN and method == "goen"
            found += origin.rows(name, group, measured, seen=calibrated)
            if (method, name) in P_VALUES:
                p = {"p_against_best": P_VALUES[method, name]}
                found += origin.rows(name, group, p, seen=calibrated)
    return found


CONTENT = {
    "study": "bench",
    "data": "cifar10",
    "config": {},
    "titles": {
        "max_softmax": ["Max softmax", "predictive"],
        "knn": ["KNN", "post-hoc"],
        "goen": ["GOEN", "goen"],
    },
    "uses_ood": ["goen"],
    "calibration_ood": ["svhn", "noise"],
    "missing": {"places": "places is not here."},
    "skipped": {"pytorch_ood.KNN": "pytorch-ood cannot be imported."},
}
SUMMARY = Summary.from_json(CONTENT)  # type: ignore[arg-type]
COLUMNS = (
    "mean unseen",
    "cifar100 (near)",
    "tiny-imagenet (near)",
    "mnist (far)",
    "places (far)",
    "mean near",
    "mean far",
    "svhn (far)",
    "noise",
    "mean calibration kinds",
    "mean paper's three",
)


def column(table: Table, name: str) -> dict[str, Cell]:
    place = table.columns.index(name)
    return {row.label: row.cells[place] for row in table.rows}


def test_unseen_sets_lead_and_calibration_kinds_are_set_apart() -> None:
    table = bench_tables(results(), SUMMARY)[0]
    assert table.title == "AUROC: cifar10, budget full, seed 42"
    assert table.columns == (*COLUMNS, "OOD data")
    assert table.apart == COLUMNS.index("svhn (far)")
    assert [row.label for row in table.rows] == ["Max softmax", "KNN", "GOEN"]
    svhn = column(table, "svhn (far)")
    assert {k: c.value for k, c in svhn.items()} == {"Max softmax": 0.8, "KNN": 0.85, "GOEN": 0.9}
    assert (svhn["GOEN"].low, svhn["GOEN"].high) == (0.9 - 0.01, 0.9 + 0.01)
    assert [c.text for c in column(table, "OOD data").values()] == ["no", "no", "yes"]
    text = " ".join(table.notes)
    assert "Mean unseen: over cifar100, tiny-imagenet, mnist, places, for every row" in text
    assert "the calibration kinds: svhn, noise, of which" in text
    assert "places is not here" in text
    assert "pytorch-ood cannot be imported" in text


def test_seen_and_unseen_sets_are_averaged_apart() -> None:
    unseen = {"cifar100", "tiny-imagenet", "mnist", "places"}
    sets = {
        "mean unseen": unseen,
        "mean near": {"cifar100", "tiny-imagenet"},
        "mean far": {"mnist", "places"},
        "mean calibration kinds": {"svhn", "noise"},
        "mean paper's three": {"svhn", "cifar100", "noise"},
    }
    assert unseen | {*SEEN} == SETS.keys()
    for table in bench_tables(results(), SUMMARY)[:3]:
        for label, method in (("Max softmax", "max_softmax"), ("KNN", "knn"), ("GOEN", "goen")):
            values = {r.dataset: r.value for r in results() if key(r) == (method, table.name)}
            shown = {name: column(table, name)[label].value for name in COLUMNS if "mean" in name}
            assert shown == pytest.approx(
                {name: fmean(values[of] for of in several) for name, several in sets.items()}
            )


def key(result: Result) -> tuple[str, str]:
    return result.method, result.metric


def test_the_means_are_over_the_same_sets_whatever_methods_are_compared() -> None:
    content = {**CONTENT, "titles": {"knn": ["KNN", "post-hoc"]}, "uses_ood": []}
    alone = [r for r in results() if r.method == "knn"]
    summary = Summary.from_json(content)  # type: ignore[arg-type]
    for lonely, table in zip(
        bench_tables(alone, summary)[:4], bench_tables(results(), SUMMARY)[:4], strict=True
    ):
        assert (lonely.columns, lonely.apart) == (table.columns, table.apart)
        knn = next(row for row in table.rows if row.label == "KNN")
        assert [c.value for c in lonely.rows[0].cells] == [c.value for c in knn.cells]


def test_a_row_that_has_seen_a_kind_is_marked_and_never_bold_there() -> None:
    for table in bench_tables(results(), SUMMARY)[:4]:
        goen = next(row for row in table.rows if row.label == "GOEN").cells
        apart = goen[table.apart : len(COLUMNS)]
        assert apart
        assert all(cell.seen and not cell.mark for cell in apart)
        assert not any(cell.seen for cell in goen[: table.apart])
        assert not any(cell.seen for row in table.rows[:2] for cell in row.cells)
    auroc = bench_tables(results(), SUMMARY)[0]
    for name in ("svhn (far)", "noise", "mean calibration kinds", "mean paper's three"):
        # GOEN is the highest of each but the last.
        assert {k: c.mark for k, c in column(auroc, name).items()} == {
            "Max softmax": "",
            "KNN": "best",
            "GOEN": "",
        }
    far = {k: c.mark for k, c in column(auroc, "mean far").items()}
    assert far == {"Max softmax": "", "KNN": "", "GOEN": "best"}


def test_the_same_row_is_bold_where_nothing_calibrated_it() -> None:
    table = bench_tables(results(seen=False), SUMMARY)[0]
    assert column(table, "mean calibration kinds")["GOEN"].mark == "best"


def test_what_is_not_significantly_worse_than_the_best_is_tied() -> None:
    places = column(bench_tables(results(), SUMMARY)[0], "places (far)")
    assert {k: c.mark for k, c in places.items()} == {
        "Max softmax": "tied",
        "KNN": "",
        "GOEN": "best",
    }


def test_one_unseen_set_leads_and_no_mean_is_over_calibration_kinds_alone() -> None:
    few = [r for r in results() if r.dataset in ("test", "cifar100", "svhn", "noise")]
    table = bench_tables(few, SUMMARY)[0]
    assert table.columns == (
        "cifar100 (near)",
        "svhn (far)",
        "noise",
        "mean paper's three",
        "OOD data",
    )
    assert table.apart == 1
    far = [r for r in results() if r.dataset in ("test", "mnist", "places")]
    assert bench_tables(far, SUMMARY)[0].columns[:-1] == (
        "mean unseen",  # which is that of the far sets
        "mnist (far)",
        "places (far)",
    )
    seen = [r for r in results() if r.dataset in ("test", "svhn", "noise")]
    table = bench_tables(seen, SUMMARY)[0]
    assert table.columns == ("svhn (far)", "noise", "OOD data")
    assert table.apart is None


def test_every_metric_has_a_name_its_convention_and_its_direction() -> None:
    found = {table.name: table for table in bench_tables(results(), SUMMARY)}
    assert list(found) == [
        "auroc",
        "fpr95_ood_positive",
        "fpr95_id_positive",
        "aupr_out",
        "classifiers",
        "cost",
    ]
    assert not any("_" in table.title for table in found.values())
    aupr = found["aupr_out"]
    assert aupr.title.startswith("AUPR, OOD positive: cifar10")
    assert "OOD images as the positive class" in aupr.notes[0]
    assert not any(name.startswith("mean") for name in aupr.columns)
    lower = column(found["fpr95_ood_positive"], "mnist (far)")
    assert "Lower is better" in found["fpr95_ood_positive"].notes[0]
    assert {k: c.mark for k, c in lower.items()} == {"Max softmax": "", "KNN": "best", "GOEN": ""}


def test_methods_that_share_a_network_share_a_row_of_the_classifiers() -> None:
    table = next(t for t in bench_tables(results(), SUMMARY) if t.name == "classifiers")
    assert [row.label for row in table.rows] == ["Max softmax and 1 other", "GOEN"]
    assert [cell.mark for cell in column(table, "accuracy").values()] == ["best", ""]
    # Equal numbers of different networks are no best either.
    assert [cell.mark for cell in column(table, "ECE").values()] == ["tied", "tied"]
    assert "Max softmax and 1 other: KNN." in table.notes


def test_a_metric_of_no_result_has_no_table() -> None:
    old = [r for r in results() if r.metric != "aupr_out"]
    assert "aupr_out" not in {table.name for table in bench_tables(old, SUMMARY)}


def test_the_cost_is_that_of_the_results(reports: dict[str, Path]) -> None:
    folder = reports["bench"]
    values, by_title = values_by_key(folder), methods_by_title(folder)
    shown = tables(folder / "report.html")["cost"].cells()
    assert shown
    for (section, label, name), cell in shown.items():
        method = by_title[section, label]
        if name == "training s":
            assert cell.text == f"{values[method, 'test', 'training_seconds']:.0f}"
    assert shown["post-hoc", "KNN", "fit and score s"].text == "1.50"


def test_the_cost_names_the_machine_in_every_file() -> None:
    hardware = {"processor": "A 1000", "threads": 2}
    for recorded, text in ((hardware, "processor A 1000, threads 2"), ({}, "not recorded")):
        cost = bench_tables(results(), replace(SUMMARY, hardware=recorded))[-1]
        assert cost.notes[0].endswith(f"The machine: {text}.")


def test_a_skipped_method_is_named(reports: dict[str, Path]) -> None:
    text = (reports["bench"] / "report.html").read_text()
    assert "Left out: pytorch_ood.KNN. pytorch-ood cannot be imported." in text


def test_differences_in_the_ablation_are_of_results(reports: dict[str, Path]) -> None:
    folder = reports["ablate"]
    values, by_title = values_by_key(folder), methods_by_title(folder)
    for (section, label, column), cell in (
        tables(folder / "report.html")["differences"].cells().items()
    ):
        dataset = column.partition(" (")[0]
        own = values[by_title[section, label], dataset, "auroc"]
        assert plain(cell.text) == f"{own - values['default', dataset, 'auroc']:+.4f}"
        assert cell.text.startswith("≈") == (dataset != "noise")


def test_a_difference_is_marked_where_either_row_was_calibrated_with_the_kind(
    reports: dict[str, Path],
) -> None:
    found = tables(reports["ablate"] / "report.html")
    shown = found["differences"].cells()
    assert {section for section, _, _ in shown} == {"with the calibrated head", "distance alone"}
    for (_, _, column), cell in shown.items():  # the default, which is subtracted, was
        assert cell.text.endswith("†") == (column == "noise")
    for (section, _, column), cell in found["center_loss"].cells().items():
        seen = column == "noise" and section == "with the calibrated head"
        assert cell.text.endswith("†") == seen
    for name in ("differences", "center_loss"):
        text = (reports["ablate"] / "tables" / f"{name}.md").read_text(encoding="utf-8")
        assert "†: they were, for the row or for the one that is subtracted." in text


def test_the_ablation_has_the_accuracy_of_each_network() -> None:
    kept = read_study(Path(__file__).parents[3] / "results" / "cifar10" / "ablate-42.jsonl")
    table = next(t for t in ablate_tables(kept.results, kept.summary) if t.name == "classifiers")
    shown = {row.label: row.cells[0].formatted for row in table.rows}
    assert shown["default, with CenterLoss"] == "0.8712"
    assert shown["NoCenterLoss and 1 other"] == "0.8750"  # noise alone calibrates the same network


def test_an_ablation_without_a_pair_to_compare_has_no_table_of_pairs(tmp_path: Path) -> None:
    folder = ablate(tmp_path / "a")
    results = [r for r in read_results(folder / "results.jsonl") if r.method == "default"]
    summary = json.loads((folder / "run.json").read_text())
    summary["titles"] = {"default": summary["titles"]["default"]}
    assert all(table.rows for table in study_tables(results, Summary.from_json(summary)))


def drawings(page: Page) -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in page.drawings()}


def summary_of(run: RunFolder) -> str:
    text = str(bench_page(run, bench_tables(run.results, run.summary)).summary[0].text)  # type: ignore[union-attr]
    return html.unescape(re.sub("<[^>]*>", "", text))


def test_the_summary_names_the_best_on_unseen_sets_first(tmp_path: Path) -> None:
    run = read_run(bench(tmp_path / "b"))
    lead = summary_of(run)
    assert lead.startswith("3 methods on the same images of digits, budget full, seed 42.")
    unseen, others = lead.split("On the calibration kinds")
    assert "0.9371 on near-set (Max softmax) and 0.9258 on far-set (Max softmax)" in unseen
    assert "noise" not in unseen
    assert "0.9145 on noise (Max softmax)" in others


def test_a_variant_with_two_rows_is_counted_once(tmp_path: Path) -> None:
    text = str(ablate_page(read_run(ablate(tmp_path / "a")), []).summary[0].text)  # type: ignore[union-attr]
    scores = "(with the calibrated head and distance alone)"
    assert text.startswith(f"3 variants {scores} on the same images of digits")


def test_a_method_calibrated_with_a_kind_is_not_its_best(tmp_path: Path) -> None:
    run = read_run(bench(tmp_path / "b"))
    raised = [
        replace(r, value=0.99) if (r.method, r.metric) == ("goen", "auroc") else r
        for r in run.results
    ]
    lead = summary_of(replace(run, results=raised))
    assert "0.9900 on near-set (GOEN) and 0.9900 on far-set (GOEN)" in lead
    assert "0.9145 on noise (Max softmax)" in lead
    tied = [replace(r, value=0.5) if r.metric == "auroc" else r for r in run.results]
    lead = summary_of(replace(run, results=tied))
    assert "0.5000 on near-set (Max softmax and 2 others)" in lead
    assert "0.5000 on noise (Max softmax and 1 other)" in lead


def test_unseen_sets_are_drawn_first(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    noise_first = sorted(lines, key=lambda line: '"noise"' not in line)
    (folder / "results.jsonl").write_text("".join(noise_first))
    names = list(drawings(bench_page(read_run(folder), [])))
    assert names == [
        "auroc-near-set",
        "auroc-far-set",
        "auroc-noise",
        *("roc-near-set", "scores-near-set"),
        *("roc-far-set", "scores-far-set"),
        *("roc-noise", "scores-noise"),
    ]


def test_roc_curves_have_their_numbers_and_their_prevalence(tmp_path: Path) -> None:
    run = read_run(bench(tmp_path / "b"))
    found = drawings(bench_page(run, []))
    assert "GOEN: AUROC 0.8537, AUPR 0.4269" in found["roc-near-set"].alt
    assert "GOEN†: AUROC 0.8311, AUPR 0.4156" in found["roc-noise"].alt
    assert found["roc-noise"].caption == (
        "10 OOD and 40 ID images: the AUPR of a random score is 0.200."
    )
    assert "Max softmax, KNN, GOEN" in found["scores-noise"].alt


def test_of_each_section_the_best_on_unseen_sets_is_in_colour(tmp_path: Path) -> None:
    run = read_run(bench(tmp_path / "b"))
    titles = {method: (title, "all") for method, (title, _) in run.titles.items()}
    one = replace(run, summary=replace(run.summary, titles=titles))
    assert "Max softmax: AUROC" in drawings(bench_page(one, []))["roc-noise"].alt
    assert "KNN: AUROC" not in drawings(bench_page(one, []))["roc-noise"].alt
    # Better on the calibration kind alone, KNN is not the one; better on an unseen set, it is.
    for name, coloured in (("noise", "Max softmax"), ("far-set", "KNN")):
        raised = [
            replace(r, value=1.0) if (r.method, r.dataset) == ("knn", name) else r
            for r in run.results
        ]
        alt = drawings(bench_page(replace(one, results=raised), []))["roc-near-set"].alt
        assert f"{coloured}: AUROC" in alt


def test_a_run_without_scores_has_no_empty_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    folder = bench(tmp_path / "b")
    (folder / "scores.safetensors").unlink()
    write_report(folder)
    text = page_text(folder)
    assert "ROC curves" not in text
    assert 'id="auroc"' in text
    assert {f.stem for f in (folder / "figures").glob("*.svg")} == {
        "auroc-near-set",
        "auroc-far-set",
        "auroc-noise",
    }


def test_a_dataset_that_one_method_lacks_is_marked_in_the_figure(tmp_path: Path) -> None:
    folder = ablate(tmp_path / "a")
    lines = (folder / "results.jsonl").read_text().splitlines()
    gone = [i for i, line in enumerate(lines) if '"concat"' in line and "far-set" in line]
    kept = [line for i, line in enumerate(lines) if i not in gone]
    (folder / "results.jsonl").write_text("\n".join(kept) + "\n")
    alts = [drawing.alt for drawing in drawings(ablate_page(read_run(folder), [])).values()]
    assert any("far-set" in alt and "CenterLoss not measured" in alt for alt in alts)
