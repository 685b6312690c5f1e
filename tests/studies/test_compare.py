"""A comparison in a folder that holds an earlier one, and the ranking of its methods."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from goen.data import ImageSet
from goen.detectors import Energy
from goen.errors import ArtifactError, FitError, UsageError
from goen.io.manifest import JsonValue
from goen.io.results import Origin, read_results, read_scores
from goen.io.stages import Stages
from goen.metrics import paired_mean_auroc_test
from goen.report.page import study_tables
from goen.report.summary import read_summary
from goen.studies import PRESETS, BenchConfig, RunConfig, bench, run
from goen.studies.base import FittedMethod
from goen.studies.compare import Asked, Compared, compare, rank
from goen.studies.methods import METHODS, Method
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


class Measured:
    """An experiment whose fits and passes take the same time whatever the machine."""

    recipe: ClassVar[dict[str, JsonValue]] = {"width": 2}

    def __init__(self, areas: Mapping[str, float]) -> None:
        self.protocol = tiny_protocol()
        self._areas = areas

    def fit(self, method: Method) -> FittedMethod:
        if method.key not in self._areas:
            raise FitError("No weights.")
        seen = tuple(self.protocol.calibration_ood) if method.uses_ood else ()
        origin = Origin(method.key, "full", 0, "net", ("train:1",), (), 3.0)
        return FittedMethod(method, Energy(), origin, 7.0, seen)

    def score(self, fitted: FittedMethod, images: ImageSet) -> tuple[NDArray[np.float64], float]:
        draw = np.random.default_rng(len(images))
        shift = 0.0 if images is self.protocol.test else self._areas[fitted.method.key]
        return draw.normal(shift, 1.0, len(images)), 0.5

    def class_logits(self, fitted: FittedMethod, images: ImageSet) -> NDArray[np.float32]:
        return np.eye(len(images.classes), dtype=np.float32)[images.labels]

    def outputs(self, network: str, images: ImageSet) -> tuple[None, float]:
        return None, 2.0


def measured(
    out: Path, areas: Mapping[str, float], methods: Sequence[str], asked: Asked
) -> Compared:
    return compare(Measured(areas), [METHODS[name] for name in methods], out, asked)  # type: ignore[arg-type]


def test_costs_worked_by_hand(tmp_path: Path) -> None:
    found = measured(tmp_path, {"knn": 1.0}, ["knn"], Asked({}))
    p = tiny_protocol()
    numbers = {r.metric: r.value for r in found.results if r.dataset == "test"}
    sets = 1 + len(p.evaluation)
    images = len(p.test) + sum(len(ood.images) for ood in p.evaluation.values())
    assert numbers["score_ms_per_image"] == pytest.approx(500 * sets / images)
    assert numbers["network_ms_per_image"] == pytest.approx(2000 / len(p.test))
    assert (numbers["fit_seconds"], numbers["training_seconds"]) == (3.0, 7.0)
    assert numbers["accuracy"] == 1
    assert {r.seconds for r in found.results} == {3.0 + sets / 2}


def test_each_but_the_best_is_tested_against_it_and_the_order_is_that_of_the_calls(
    tmp_path: Path,
) -> None:
    first = measured(tmp_path, {"knn": 1.0, "energy": 2.0}, ["knn", "energy"], Asked({}))
    assert [r.method for r in first.results if r.metric == "p_against_best"] == ["knn"] * len(
        tiny_protocol().evaluation
    )
    asked = Asked({"methods": ["vim"]}, next_step=lambda key: f"fit {key}")
    both = measured(tmp_path, {"vim": 0.5}, ["vim"], asked)
    assert both.ranking is not None
    assert [*both.titles] == ["knn", "energy", "vim"]
    assert [*both.ranking.means] == ["energy", "knn", "vim"]
    tested = [r.method for r in both.results if r.metric == "p_against_best"]
    assert sorted({*tested}) == ["knn", "vim"]
    assert len(tested) == 2 * len(tiny_protocol().evaluation)
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["networks"] == {"knn": "standard", "energy": "standard", "vim": "standard"}
    assert run["next_step"] == "fit energy"
    assert {*run["identities"]} == {"train", "test", *tiny_protocol().evaluation}


def test_what_cannot_be_fitted_is_left_out_of_a_lenient_comparison_unless_it_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    areas, methods = {"knn": 1.0}, ["knn", "vim"]
    with pytest.raises(FitError):
        measured(tmp_path, areas, methods, Asked({}))
    with pytest.raises(FitError):
        measured(tmp_path, areas, methods, Asked({}, named=["vim"], lenient=True))
    found = measured(tmp_path, areas, methods, Asked({}, named=["knn"], lenient=True))
    assert found.skipped == {"vim": "No weights."}
    assert [*found.titles] == ["knn"]
    assert "Left out: vim. No weights." in caplog.messages
    with pytest.raises(UsageError, match="No method is left"):
        measured(tmp_path / "none", {}, methods, Asked({}, lenient=True))
    # Measured later, it is no longer left out.
    later = measured(tmp_path, {"vim": 0.5}, ["vim"], Asked({}))
    assert (later.skipped, [*later.titles]) == ({}, ["knn", "vim"])


def test_where_every_set_is_of_a_kind_that_calibrates_what_they_calibrated_is_not_ranked() -> None:
    origin = Origin("knn", "full", 0, "net", ())
    rows = origin.rows("noise", "noise", {"auroc": 0.9})
    rows += replace(origin, method="goen_m_ood").rows("noise", "noise", {"auroc": 0.9}, seen=True)
    scores = {
        name: {m: np.arange(5.0) for m in ("knn", "goen_m_ood")} for name in ("test", "noise")
    }
    only = rank(rows, scores, ["noise"])
    assert only is not None
    assert (only.sets, [*only.means]) == (("noise",), ["knn"])
    assert rank(rows[1:], scores, ["noise"]) is None
