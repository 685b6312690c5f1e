"""The pages of the other studies: their numbers, what is missing, their files."""

import html
import json
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from goen.errors import ArtifactError
from goen.report import write_report
from goen.report.ablate import ablate_page
from goen.report.provenance import command
from goen.report.registry import study_tables
from goen.report.run_folder import read_run
from goen.report.summary import Summary
from goen.runs.results import read_results

from .by_hand import STUDIES, ablate, bench, geometry, seeds
from .reading import plain, tables

pytestmark = pytest.mark.xdist_group("report")


def numbers(folder: Path) -> dict[tuple[str, str, str], float]:
    rows = read_results(folder / "results.jsonl")
    return {(r.method, r.dataset, r.metric): r.value for r in rows}


def methods(folder: Path) -> dict[tuple[str, str], str]:
    titles = json.loads((folder / "run.json").read_text())["titles"]
    return {(section, title): method for method, (title, section) in titles.items()}


@pytest.mark.parametrize("study", ["bench", "ablate"])
def test_a_comparison_shows_the_results(study: str, reports: dict[str, Path]) -> None:
    folder = reports[study]
    values, by_title = numbers(folder), methods(folder)
    found = tables(folder / "report.html")
    for metric in ("auroc", "fpr95_ood_positive", "fpr95_id_positive"):
        checked = 0
        for (section, label, column), cell in found[metric].cells().items():
            method = by_title[section, label]
            dataset, bracket, _ = column.partition(" (")
            if bracket:
                assert plain(cell.text) == f"{values[method, dataset, metric]:.4f}"
                checked += 1
            elif column == "mean unseen":
                mean = fmean(values[method, name, metric] for name in ("near-set", "far-set"))
                assert plain(cell.text) == f"{mean:.4f}"
        assert checked == 3 * len(by_title)


def test_the_cost_is_that_of_the_results(reports: dict[str, Path]) -> None:
    folder = reports["bench"]
    values, by_title = numbers(folder), methods(folder)
    for (section, label, column), cell in (
        tables(folder / "report.html")["classifier"].cells().items()
    ):
        method = by_title[section, label]
        if column == "training s":
            assert cell.text == f"{values[method, 'test', 'training_seconds']:.0f}"
        if column == "accuracy":
            assert cell.text == f"{values[method, 'test', 'accuracy']:.4f}"
    assert (
        "Max softmax 60.5 s, 0.9315" in (folder / "report.html").read_text()
    )  # (.9371 + .9258) / 2


def test_differences_in_the_ablation_are_of_results(reports: dict[str, Path]) -> None:
    folder = reports["ablate"]
    values, by_title = numbers(folder), methods(folder)
    for (section, label, column), cell in (
        tables(folder / "report.html")["differences"].cells().items()
    ):
        dataset = column.partition(" (")[0]
        own = values[by_title[section, label], dataset, "auroc"]
        assert plain(cell.text) == f"{own - values['default', dataset, 'auroc']:+.4f}"
        assert cell.text.startswith("≈") == (dataset != "noise")


def test_seeds_show_mean_spread_and_each(reports: dict[str, Path]) -> None:
    folder = reports["seeds"]
    rows = read_results(folder / "results.jsonl")
    found = tables(folder / "report.html")
    values = [
        r.value for r in rows if r.method == "goen" and (r.dataset, r.metric) == ("noise", "auroc")
    ]
    cells = {c: cell for (_, label, c), cell in found["auroc"].cells().items() if label == "GOEN"}
    assert plain(cells["noise"].text) == f"{fmean(values):.4f} ± {stdev(values):.4f}"
    assert cells["noise least"].text == f"{min(values):.4f}"
    each = [
        c.text
        for (section, _, column), c in found["each_seed"].cells().items()
        if section == "GOEN" and column == "noise"
    ]
    assert each == [f"{value:.4f}" for value in values]


def test_robustness_shows_means_over_corruptions(reports: dict[str, Path]) -> None:
    folder = reports["robust"]
    values = numbers(folder)
    by_label = {"Max softmax": "max_softmax", "KNN": "knn"}
    found = tables(folder / "report.html")
    for metric in ("accuracy", "ece", "nll", "brier", "mean_score", "flagged"):
        for (_, label, column), cell in found[metric].cells().items():
            severity = column.removeprefix("severity ")
            sets = (
                ["clean"]
                if column == "clean"
                else [f"{c}-{severity}" for c in ("fog", "gaussian_noise", "snow")]
            )
            mean = fmean(values[by_label[label], name, metric] for name in sets)
            assert cell.text == f"{mean:.4f}"


def test_geometry_shows_the_results_and_fills_nothing_in(reports: dict[str, Path]) -> None:
    folder = reports["geometry"]
    values, by_title = numbers(folder), methods(folder)
    kinds = {"raw": "raw", "scaled to unit length": "unit"}
    texts = set()
    for (section, label, column), cell in tables(folder / "report.html")["z_train"].cells().items():
        metric = f"z/{kinds[section]}/{column.replace(' ', '_')}"
        value = values.get((by_title["", label], "train", metric))
        assert cell.text == ("n/a" if value is None else f"{value:.4g}")
        texts.add(cell.text)
    assert {"n/a", "0.7"} <= texts


@pytest.mark.parametrize("study", STUDIES)
def test_what_is_missing_is_named_and_figures_have_alternative_texts(
    study: str, reports: dict[str, Path]
) -> None:
    text = (reports[study] / "report.html").read_text()
    assert "<b>places is missing.</b>" in text
    assert "hardware</td><td>not recorded" in text
    for picture in re.findall(r"<img [^>]*>", text):
        assert re.search(r'alt="[^"]{15,}"', picture)
    assert len(text) < 3_000_000


def test_a_skipped_method_is_named(reports: dict[str, Path]) -> None:
    text = (reports["bench"] / "report.html").read_text()
    assert "<b>pytorch_ood.KNN is missing.</b> pytorch-ood cannot be imported." in text


def test_figures_and_tables_lie_beside_the_page(reports: dict[str, Path]) -> None:
    folder = reports["bench"]
    names = {path.stem for path in (folder / "figures").glob("[!.]*")}
    assert {"auroc-near-set", "auroc-noise", "cost"} <= names
    for name in names:
        assert (folder / "figures" / f"{name}.svg").read_text().lstrip().startswith("<?xml")
        assert (folder / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (folder / "figures" / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
    assert {"auroc.md", "auroc.tex", "auroc.csv"} <= {p.name for p in (folder / "tables").iterdir()}


def test_the_same_figures_every_time_and_none_of_an_earlier_report(
    tmp_path: Path, reports: dict[str, Path]
) -> None:
    folder = bench(tmp_path / "b")
    figures = folder / "figures"
    figures.mkdir()
    for name in ("roc-gone.svg", "mine.pdf"):
        (figures / name).write_text("of an earlier day")
    (figures / ".goen-wrote").write_text("cost.svg\nroc-gone.svg\n../run.json")
    write_report(folder)
    assert (figures / "mine.pdf").read_text() == "of an earlier day"
    (figures / "mine.pdf").unlink()
    first = {p.name: p.read_bytes() for p in (reports["bench"] / "figures").iterdir()}
    assert {p.name: p.read_bytes() for p in figures.iterdir()} == first
    assert (folder / "run.json").is_file()


def test_a_dataset_that_one_method_lacks_is_marked_in_the_figure(tmp_path: Path) -> None:
    folder = ablate(tmp_path / "a")
    lines = (folder / "results.jsonl").read_text().splitlines()
    gone = [i for i, line in enumerate(lines) if '"concat"' in line and "far-set" in line]
    kept = [line for i, line in enumerate(lines) if i not in gone]
    (folder / "results.jsonl").write_text("\n".join(kept) + "\n")
    page = ablate_page(read_run(folder), [])
    alts = [d.alt for block in page.sections[0].blocks for d in getattr(block, "drawings", ())]
    assert any("far-set" in alt and "CenterLoss not measured" in alt for alt in alts)


def test_the_five_panels_take_what_lies_beside(
    tmp_path: Path, reports: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    others = [ablate(tmp_path / "a"), seeds(tmp_path / "s"), geometry(tmp_path / "g")]
    text = html.unescape(write_report(reports["run"], beside=others).read_text())
    assert "Missing here" not in text
    assert "ablation is drawn; seeds is drawn" in text
    write_report(reports["run"])  # as the other tests expect it


def test_a_study_of_a_later_version_is_an_error(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    summary = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**summary, "study": "sweep"}))
    with pytest.raises(ArtifactError, match="'sweep', which this version of goen cannot report"):
        write_report(folder)


def test_the_command_names_the_further_sets(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    rows = folder / "results.jsonl"
    rows.write_text(rows.read_text().replace("far-set", "textures"))
    assert "--data digits --extra textures --" in command(read_run(folder))


@pytest.mark.parametrize(
    ("file", "text"),
    [("run.json", "[]"), ("run.json", '{"study": "bench"}'), ("results.jsonl", "")],
)
def test_a_damaged_run_is_one_sentence(file: str, text: str, tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    (folder / file).write_text(text)
    with pytest.raises(ArtifactError, match=r"damaged|does not hold a finished run"):
        write_report(folder)


def test_an_ablation_without_a_pair_to_compare_has_no_table_of_pairs(tmp_path: Path) -> None:
    folder = ablate(tmp_path / "a")
    results = [r for r in read_results(folder / "results.jsonl") if r.method == "default"]
    summary = json.loads((folder / "run.json").read_text())
    summary["titles"] = {"default": summary["titles"]["default"]}
    assert all(table.rows for table in study_tables(results, Summary.from_json(summary)))
