"""The page that bench and ablate share: its summary and its figures."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from goen.report import write_report
from goen.report.ablate import ablate_page
from goen.report.bench import bench_page, bench_tables
from goen.report.blocks import Drawing, Gallery, Page
from goen.report.run_folder import RunFolder, read_run

from .by_hand import ablate, bench
from .reading import page_text

pytestmark = pytest.mark.xdist_group("report")


def drawings(page: Page) -> dict[str, Drawing]:
    galleries = [block for block in page.blocks() if isinstance(block, Gallery)]
    return {drawing.name: drawing for gallery in galleries for drawing in gallery.drawings}


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
