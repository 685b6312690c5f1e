"""A comparison in a folder that holds an earlier one, and the ranking of its methods."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from goen.errors import ArtifactError, UsageError
from goen.io.results import read_results, read_scores
from goen.io.stages import Stages
from goen.metrics import paired_mean_auroc_test
from goen.report.page import study_tables
from goen.report.summary import read_summary
from goen.studies import PRESETS, BenchConfig, RunConfig, bench, run
from goen.studies.compare import rank
from tests.tiny import FAST, tiny_protocol

CONFIG = BenchConfig(("energy", "knn"), preset="fast")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "fast", FAST)
        bench(CONFIG, tiny_protocol(), folder / "bench", Stages(folder / "stages"))
    return folder


def test_a_second_call_adds_and_another_network_or_study_is_refused(folder: Path) -> None:
    out, stages = folder / "bench", Stages(folder / "stages")
    first = read_results(out / "results.jsonl")
    bench(replace(CONFIG, methods=("goen_m", "energy")), tiny_protocol(), out, stages)
    both = read_results(out / "results.jsonl")
    assert list(dict.fromkeys(r.method for r in both)) == ["knn", "energy", "goen_m"]
    values = {(r.method, r.dataset, r.metric): r.value for r in both}
    for r in first:
        if r.metric in ("auroc", "fpr95_id_positive", "accuracy"):
            assert values[r.method, r.dataset, r.metric] == r.value
    assert {*read_scores(out / "scores.safetensors")["test"]} == {"knn", "energy", "goen_m"}
    before = (out / "results.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"another study .with another seed and network"):
        bench(replace(CONFIG, seed=7), tiny_protocol(), out, stages)
    assert (out / "results.jsonl").read_bytes() == before


def test_one_set_more_keeps_the_others(folder: Path, tmp_path: Path) -> None:
    stages, p = Stages(folder / "stages"), tiny_protocol()
    bench(replace(CONFIG, sets=("noise",)), p, tmp_path, stages)
    bench(replace(CONFIG, sets=("photographs",), methods=("knn",)), p, tmp_path, stages)
    found = {(r.method, r.dataset) for r in read_results(tmp_path / "results.jsonl")}
    assert {("energy", "noise"), ("knn", "noise"), ("knn", "photographs")} <= found
    assert ("energy", "photographs") not in found


def test_the_folder_of_another_study_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    run(RunConfig(preset="fast"), tiny_protocol(), tmp_path, Stages(folder / "stages"))
    with pytest.raises(UsageError, match=r"another study .it is goen run."):
        bench(CONFIG, tiny_protocol(), tmp_path, Stages(folder / "stages"))
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ArtifactError, match="holds a damaged study"):
        bench(CONFIG, tiny_protocol(), tmp_path, Stages(folder / "stages"))


def test_the_network_stands_beside_each_method(folder: Path, tmp_path: Path) -> None:
    config, p = replace(CONFIG, methods=("energy", "goen_m")), tiny_protocol()
    results = bench(config, p, tmp_path, Stages(folder / "stages"))
    tables = study_tables(results, read_summary(tmp_path))
    for table in tables:
        if table.name != "classifiers":
            assert table.columns[0] == "network"
            assert {row.label: row.cells[0].text for row in table.rows} == {
                "Energy": "standard",
                "goen-m": "goen",
            }
    alone = bench(
        replace(config, methods=("energy",)), p, tmp_path / "one", Stages(folder / "stages")
    )
    (first, *_) = study_tables(alone, read_summary(tmp_path / "one"))
    assert "network" not in first.columns


def test_methods_are_ranked_over_the_sets_that_calibrate_none(folder: Path, tmp_path: Path) -> None:
    p = tiny_protocol()
    config = replace(CONFIG, methods=("energy", "knn", "goen_m_ood"))
    results = bench(config, p, tmp_path, Stages(folder / "stages"))
    scores = read_scores(tmp_path / "scores.safetensors")
    ranking = rank(results, scores, p.calibration_ood)
    assert ranking is not None
    assert ranking.sets == ("unseen-digits",)
    recorded = json.loads((tmp_path / "run.json").read_text())["ranking"]
    assert recorded["means"] == dict(ranking.means)
    a, b = [*ranking.means][:2]
    test = paired_mean_auroc_test(
        id_a=scores["test"][a],
        ood_a={"x": scores["unseen-digits"][a]},
        id_b=scores["test"][b],
        ood_b={"x": scores["unseen-digits"][b]},
    )
    assert ranking.means[a] - ranking.means[b] == pytest.approx(test.difference)
    seen = rank([r for r in results if r.dataset != "unseen-digits"], scores, p.calibration_ood)
    assert seen is not None
    assert "goen_m_ood" not in seen.means  # its kinds calibrated it
