"""The page: its numbers are the results', it needs nobody else, and it can be read aloud."""

import html
import re
from pathlib import Path

import pytest

from goen.errors import ArtifactError
from goen.report import write_report
from goen.results import read_results
from goen.studies import PRESETS, RunConfig, run

from ..tiny import TINY, tiny_protocol


@pytest.fixture(scope="module", params=["all", "none"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "tiny", TINY)  # type: ignore[arg-type]
        run(RunConfig(preset="tiny", calibration=request.param), tiny_protocol(), out)
    write_report(out)
    return out


def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


def test_every_number_of_the_table_stands_in_the_results(folder: Path) -> None:
    text = page(folder)
    results = read_results(folder / "results.jsonl")
    aurocs = [f"{r.value:.4f}" for r in results if r.metric == "auroc"]
    body = text[text.index("How well each score") : text.index("Where the scores lie")]
    shown = re.findall(r"<td>(?:<b>)?(\d\.\d{4})", body)
    assert shown == [
        f"{r.value:.4f}"
        for method in dict.fromkeys(r.method for r in results if r.metric == "auroc")
        for r in results
        if r.metric == "auroc" and r.method == method
    ]
    assert len(shown) == len(aurocs)
    for r in results:
        if r.metric in ("false_alarm_rate", "flagged"):
            assert f"<b>{r.value:.1%}</b>" in text
        if r.method == "classifier" and r.metric in ("accuracy", "ece", "nll", "brier"):
            assert f"<td>{r.value:.4f}</td>" in text


def test_the_best_of_each_set_is_bold(folder: Path) -> None:
    results = [r for r in read_results(folder / "results.jsonl") if r.metric == "auroc"]
    body = page(folder)
    for name in {r.dataset for r in results}:
        best = max(r.value for r in results if r.dataset == name)
        assert f"<b>{best:.4f}</b>" in body


def test_it_asks_nothing_of_the_network(folder: Path) -> None:
    text = page(folder)
    sources = re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert "@import" not in text
    assert "<script" not in text


def test_every_picture_says_what_it_shows(folder: Path) -> None:
    pictures = re.findall(r"<img [^>]*>", page(folder))
    assert len(pictures) >= 6
    for picture in pictures:
        alt = re.search(r'alt="([^"]+)"', picture)
        assert alt is not None
        assert len(html.unescape(alt.group(1))) > 15


def test_a_missing_set_is_said(folder: Path) -> None:
    assert "places is missing." in page(folder)


def test_what_was_seen_in_calibration_is_marked(folder: Path) -> None:
    seen = any(r.seen_in_calibration for r in read_results(folder / "results.jsonl"))
    assert (", seen</span>" in page(folder)) == seen


def test_the_page_is_the_same_every_time(folder: Path) -> None:
    before = page(folder)
    write_report(folder)
    assert page(folder) == before


def test_an_unfinished_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="Has the run finished"):
        write_report(tmp_path)
