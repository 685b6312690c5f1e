import dataclasses
from pathlib import Path

import numpy as np
import pytest

from goen.errors import ArtifactError
from goen.runs.results import Origin, Result, read_results, read_scores, write_results, write_scores

ROW = Result(
    "goen",
    "full",
    42,
    "svhn",
    "far",
    "auroc",
    0.9,
    0.8,
    0.95,
    True,
    ("a:1",),
    ("b:2", "c:3"),
    "net",
    None,
)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [ROW, dataclasses.replace(ROW, value=0.1 + 0.2, low=None, high=None, calibrated_on=())]
    write_results(tmp_path / "r.jsonl", rows)
    assert read_results(tmp_path / "r.jsonl") == rows


def test_a_line_that_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_results(path, [ROW])
    path.write_text(path.read_text() + '{"method": "x"}\n')
    with pytest.raises(ArtifactError, match=r"r\.jsonl, line 2, is not a result: missing"):
        read_results(path)
    path.write_text("{")
    with pytest.raises(ArtifactError, match="line 1"):
        read_results(path)
    with pytest.raises(ArtifactError, match="Has the run finished"):
        read_results(tmp_path / "none.jsonl")


def test_names_with_odd_line_ends_come_back_and_damage_is_said(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    odd = dataclasses.replace(ROW, dataset="one\u2028two\x85three")
    write_results(path, [odd, ROW])
    assert read_results(path) == [odd, ROW]
    path.write_text(path.read_text().replace('"fitted_on": [', '"fitted_on": null, "x": [', 1))
    with pytest.raises(ArtifactError, match="line 1, is not a result"):
        read_results(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="is damaged"):
        read_results(path)


def test_an_origin_gives_each_metric_a_row_and_the_auroc_its_interval() -> None:
    origin = Origin("goen", "full", 42, "net", ("a:1",), ("b:2", "c:3"))
    numbers = {"auroc": 0.9, "auroc_low": 0.8, "auroc_high": 0.95, "num_ood": 7, "fpr95": 0.5}
    auroc, fpr95 = origin.rows("svhn", "far", numbers, seen=True)
    assert auroc == ROW
    assert fpr95 == dataclasses.replace(ROW, metric="fpr95", value=0.5, low=None, high=None)


def test_scores_come_back_by_set_and_method(tmp_path: Path) -> None:
    path = tmp_path / "scores.safetensors"
    scores = {"test": {"knn": np.arange(3.0)}, "a/b": {"knn": np.zeros(2), "label": np.arange(2)}}
    write_scores(path, scores)
    found = read_scores(path)
    assert {name: sorted(kept) for name, kept in found.items()} == {
        "test": ["knn"],
        "a/b": ["knn", "label"],
    }
    for dataset, named in scores.items():
        for name, values in named.items():
            assert np.array_equal(found[dataset][name], values)
            assert found[dataset][name].dtype == values.dtype
    path.write_bytes(b"half")
    for damaged in (path, tmp_path / "none"):
        with pytest.raises(ArtifactError, match=r"cannot be read: .*Has the run finished\?"):
            read_scores(damaged)
