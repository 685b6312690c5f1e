"""The page of ``goen run``: its numbers are the results', it is self-contained."""

import html
import json
import re
from pathlib import Path

import pytest

from goen.errors import ArtifactError
from goen.report import write_report
from goen.runs.results import Result, read_results
from goen.studies import METHODS

from .reading import plain, tables

pytestmark = pytest.mark.xdist_group("report")
BY_SET = ("auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out")


@pytest.fixture(params=["run", "no_head"])
def folder(request: pytest.FixtureRequest, reports: dict[str, Path]) -> Path:
    return reports[request.param]


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def results_of(folder: Path) -> dict[tuple[str, str, str], Result]:
    return {(r.method, r.dataset, r.metric): r for r in read_results(folder / "results.jsonl")}


def test_every_number_of_every_table_is_that_of_the_results(folder: Path) -> None:
    found = tables(folder / "report.html")
    results = results_of(folder)
    methods = {method.title: key for key, method in METHODS.items()}
    compared = 0
    for metric in BY_SET:
        for (_, label, column), cell in found[metric].cells().items():
            dataset, bracket, _ = column.partition(" (")
            if not bracket:
                continue
            r = results[methods[label], dataset, metric]
            assert plain(cell.text) == f"{r.value:.4f}"
            if r.low is not None:
                assert cell.interval == f"{r.low:.4f}–{r.high:.4f}"
            assert cell.text.endswith("†") == r.seen_in_calibration
            compared += 1
    assert compared == len([r for r in results.values() if r.metric in BY_SET])
    for (_, _, column), cell in found["flagged"].cells().items():
        name = column.removesuffix(" (ID)")
        metric = "false_alarm_rate" if name == "test" else "flagged"
        assert cell.text == f"{results['gate', name, metric].value:.1%}"
    names = {"accuracy": "accuracy", "ECE (15 bins)": "ece", "NLL": "nll", "Brier": "brier"}
    for (_, label, column), cell in found["classifier"].cells().items():
        assert cell.text == f"{results['classifier', label, names[column]].value:.4f}"
    has_head = any(r.method == "goen" for r in results.values())
    assert ("ood_probability" in found) == has_head
    if has_head:
        for (_, label, column), cell in found["ood_probability"].cells().items():
            r = results["goen", label.partition(" (")[0], f"ood_{column}"]
            assert plain(cell.text) == f"{r.value:.4f}"
    known = {*BY_SET, "flagged", "classifier", "ood_probability"}
    assert set(found) <= known, "a table that this test does not compare"


def test_the_averages_are_means_of_results(folder: Path) -> None:
    results = results_of(folder)
    groups = {r.dataset: r.group for r in results.values() if r.group != "id"}
    seen = {r.dataset for r in results.values() if r.seen_in_calibration}
    methods = {method.title: key for key, method in METHODS.items()}
    for metric in ("auroc", "fpr95_ood_positive"):
        for (_, label, column), cell in tables(folder / "report.html")[metric].cells().items():
            if not column.startswith("mean"):
                continue
            kind = column.removeprefix("mean ")
            sets = {
                "unseen": [n for n in groups if n not in seen],
                "seen": [n for n in groups if n in seen],
                "near": [n for n, g in groups.items() if g == "near" and n not in seen],
                "far": [n for n, g in groups.items() if g == "far" and n not in seen],
            }[kind]
            values = [results[methods[label], name, metric].value for name in sets]
            assert plain(cell.text) == f"{sum(values) / len(values):.4f}"


def test_the_text_has_the_numbers_of_the_results(folder: Path) -> None:
    text = page(folder)
    for r in read_results(folder / "results.jsonl"):
        if r.metric in ("false_alarm_rate", "flagged"):
            assert f"<b>{r.value:.1%}</b>" in text
    accuracy = results_of(folder)["classifier", "test", "accuracy"].value
    assert f"accuracy on the test images is <b>{accuracy:.1%}</b>" in text


def test_the_best_of_each_set_is_bold(folder: Path) -> None:
    results = [r for r in read_results(folder / "results.jsonl") if r.metric == "auroc"]
    for (_, _, column), cell in tables(folder / "report.html")["auroc"].cells().items():
        here = [r.value for r in results if column.startswith(f"{r.dataset} (")]
        if here:
            assert cell.bold == (plain(cell.text) == f"{max(here):.4f}")


def test_it_requests_nothing_from_the_network(folder: Path) -> None:
    text = page(folder)
    sources = re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    assert sources
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert "@import" not in text
    assert "<script" not in text
    assert "default-src 'none'" in text


def test_every_entry_of_the_contents_leads_somewhere(folder: Path) -> None:
    text = page(folder)
    targets = re.findall(r'href="#([^"]+)"', text)
    assert len(targets) >= 6
    assert all(f'id="{target}"' in text for target in targets)


def test_every_picture_has_an_alternative_text(folder: Path) -> None:
    pictures = re.findall(r"<img [^>]*>", page(folder))
    assert len(pictures) >= 10
    for picture in pictures:
        alt = re.search(r'alt="([^"]+)"', picture)
        assert alt is not None
        assert len(html.unescape(alt.group(1))) > 15


def test_a_missing_dataset_is_named(folder: Path) -> None:
    assert "places is missing." in page(folder)


def test_missing_panels_are_named(folder: Path) -> None:
    without_head = "calibration, " if folder.name == "no_head" else ""
    assert f"Missing here: {without_head}ablation, seeds." in page(folder)


def test_the_prevalence_stands_beside_precision(folder: Path) -> None:
    assert re.search(r"Precision-recall curves on noise, of which 38\.5% are OOD", page(folder))


def test_the_provenance_is_there(folder: Path) -> None:
    text = html.unescape(page(folder))
    summary = json.loads((folder / "run.json").read_text())
    assert "goen run --data digits --preset tiny --budget full" in text
    for split in summary["facts"]["splits"].values():
        assert split["fingerprint"] in text
    for fact in summary["facts"]["hardware"].values():
        assert str(fact) in text
    manifest = json.loads((folder / "gate" / "manifest.json").read_text())
    assert manifest["tensors_sha256"] in text
    assert f"torch {manifest['versions']['torch']}" in text


def test_the_page_is_small(folder: Path) -> None:
    assert (folder / "report.html").stat().st_size < 3_000_000


def test_the_page_is_the_same_every_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    before = page(folder)
    write_report(folder)
    assert page(folder) == before


def test_an_unfinished_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="Has the run finished"):
        write_report(tmp_path)
