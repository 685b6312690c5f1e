"""The pages of all studies: self-contained, complete, the same every time."""

import base64
import hashlib
import html
import json
import re
import shutil
from pathlib import Path

import pytest

from goen.errors import ArtifactError, UsageError
from goen.io.files import claim_folder
from goen.report import write_report
from tests.report.by_hand import STUDIES, bench
from tests.report.reading import page_text

pytestmark = pytest.mark.xdist_group("report")


def test_it_requests_nothing_from_the_network(folder: Path) -> None:
    text = page_text(folder)
    sources = re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    assert sources
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert "@import" not in text
    [script] = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert text.count("<script") == 1 + text.count('<script type="application/json">')
    assert not re.search(r"fetch|XMLHttpRequest|WebSocket|import\b|https?:", script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )


def test_every_entry_of_the_contents_leads_somewhere(folder: Path) -> None:
    text = page_text(folder)
    targets = re.findall(r'href="#([^"]+)"', text)
    assert len(targets) >= 6
    assert all(f'id="{target}"' in text for target in targets)


def test_every_picture_has_an_alternative_text(folder: Path) -> None:
    images = re.findall(r"<img [^>]*>", page_text(folder))
    assert len(images) >= 10
    for image in images:
        alt = re.search(r'alt="([^"]+)"', image)
        assert alt is not None
        assert len(html.unescape(alt.group(1))) > 15


def test_only_the_five_panels_of_a_run_take_the_whole_width(folder: Path) -> None:
    figures = re.findall(r"<figure.*?</figure>", page_text(folder), flags=re.DOTALL)
    wide = [figure for figure in figures if figure.startswith('<figure class="wide">')]
    assert len(wide) < len(figures)
    assert all('aria-label="five-panels"' in figure for figure in wide)


def test_a_missing_dataset_is_named(folder: Path) -> None:
    assert "Left out: places." in page_text(folder)


def test_the_page_is_small(folder: Path) -> None:
    assert (folder / "report.html").stat().st_size < 3_000_000


def test_the_page_is_the_same_every_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    before = page_text(folder)
    write_report(folder)
    assert page_text(folder) == before


def test_an_unfinished_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="Has the run finished"):
        write_report(tmp_path)


def test_a_number_of_an_epoch_that_no_float_holds_is_an_error(
    reports: dict[str, Path], tmp_path: Path
) -> None:
    copied = shutil.copytree(reports["run"], tmp_path / "run")
    for name in ("training", "head"):
        kept = (copied / f"{name}.jsonl").read_text()
        (copied / f"{name}.jsonl").write_text('{"epoch": 0, "loss": 1' + "0" * 400 + "}\n")
        with pytest.raises(ArtifactError, match="loss should be a finite number"):
            write_report(copied)
        (copied / f"{name}.jsonl").write_text(kept)


@pytest.mark.parametrize("study", STUDIES)
def test_what_is_missing_is_named_and_figures_have_alternative_texts(
    study: str, reports: dict[str, Path]
) -> None:
    text = (reports[study] / "report.html").read_text()
    assert "Left out: places." in text
    assert "hardware</td><td>not recorded" in text
    for image in re.findall(r"<img [^>]*>", text):
        assert re.search(r'alt="[^"]{15,}"', image)
    assert len(text) < 3_000_000


def test_figures_and_tables_lie_beside_the_page(reports: dict[str, Path]) -> None:
    folder = reports["bench"]
    names = {path.stem for path in (folder / "figures").glob("[!.]*")}
    assert {"auroc-near-set", "auroc-noise", "roc-far-set", "scores-noise"} <= names
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
    claim_folder(figures, "figures")
    (figures / "roc-gone.svg").write_text("of an earlier day")
    write_report(folder)
    first = {p.name: p.read_bytes() for p in (reports["bench"] / "figures").iterdir()}
    assert {p.name: p.read_bytes() for p in figures.iterdir()} == first


def test_a_report_goes_into_folders_of_runs_alone(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    (folder / ".goen").unlink()
    with pytest.raises(UsageError, match=r"holds results\.jsonl, run\.json.*leaves it as it is"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_a_study_of_a_later_version_is_an_error(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    summary = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**summary, "study": "sweep"}))
    with pytest.raises(ArtifactError, match="'sweep', which this version of goen cannot report"):
        write_report(folder)


def test_control_characters_do_not_reach_the_page(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    summary = json.loads((folder / "run.json").read_text())
    summary["missing"] = {"a\x1b[31m": "\u202e<b>bold</b>\x00"}
    (folder / "run.json").write_text(json.dumps(summary))
    page = write_report(folder).read_text(encoding="utf-8")
    assert [bad for bad in ("\x1b", "\u202e", "\x00", "<b>bold") if bad in page] == []
    assert r"a\x1b[31m" in page
    assert r"\u202e&lt;b&gt;bold&lt;/b&gt;\x00" in page


@pytest.mark.parametrize(
    ("file", "text"),
    [("run.json", "[]"), ("run.json", '{"study": "bench"}'), ("results.jsonl", "")],
)
def test_a_damaged_run_is_one_sentence(file: str, text: str, tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    (folder / file).write_text(text)
    with pytest.raises(ArtifactError, match=r"damaged|does not hold a finished run"):
        write_report(folder)
