import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from goen.errors import ArtifactError
from goen.io.results import (
    Mistakes,
    Origin,
    Result,
    read_mistakes,
    read_results,
    read_scores,
    write_mistakes,
    write_results,
    write_scores,
)

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
    with pytest.raises(ArtifactError, match=r"r\.jsonl is damaged: line 2: it has no budget"):
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
    with pytest.raises(ArtifactError, match="line 1: it has unknown fields: 'x'"):
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
    with pytest.raises(ArtifactError, match="is damaged: its header"):
        read_scores(path)
    with pytest.raises(ArtifactError, match=r"is not there\. Has the run finished\?"):
        read_scores(tmp_path / "none")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("value", float("nan"), "its value should be a finite number"),
        ("value", None, "its value should be a number, got 'None'"),
        ("seed", 1.5, "its seed should be a whole number"),
        ("group", "middle", "its group should be one of id, near, far, noise, ood, got 'middle'"),
        ("low", "0.5", "its low should be a number, got '0.5'"),
        ("seen_in_calibration", 1, "its seen_in_calibration should be true or false"),
        ("fitted_on", "a:1", "its fitted_on should be a list of texts"),
        ("method", ["goen"], "its method should be text"),
    ],
)
def test_a_field_of_another_type_is_named(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    path = tmp_path / "r.jsonl"
    row = {**dataclasses.asdict(ROW), field: value}
    path.write_text(json.dumps(dataclasses.asdict(ROW)) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ArtifactError, match=f"is damaged: line 2: {message}"):
        read_results(path)
    del row[field]
    path.write_text(json.dumps(row))
    with pytest.raises(ArtifactError, match=f"line 1: it has no {field}"):
        read_results(path)


@pytest.mark.parametrize(
    "tensors",
    [
        {"no set": torch.zeros(3)},
        {"/knn": torch.zeros(3)},
        {"test/knn": torch.zeros(3, 2, 2)},
        {"test/knn": torch.zeros(())},
        {"test/knn": torch.zeros(3, dtype=torch.bfloat16)},
    ],
)
def test_scores_of_another_form_are_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    save_file(tensors, tmp_path / "scores.safetensors")
    with pytest.raises(ArtifactError, match="should be called SET/METHOD"):
        read_scores(tmp_path / "scores.safetensors")


def test_mistakes_come_back_by_set(tmp_path: Path) -> None:
    path = tmp_path / "mistakes.safetensors"
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5), dtype=np.uint8)
    some = Mistakes(np.array([7, 3]), images)
    none = Mistakes(np.zeros(0, np.int64), images[:0])
    write_mistakes(path, {"test": some, "a/b": none})
    found = read_mistakes(path)
    assert found.keys() == {"test", "a/b"}
    assert found["test"].rows.tolist() == [7, 3]
    assert np.array_equal(found["test"].images, images)
    assert found["a/b"].images.shape == (0, 3, 4, 5)
    path.write_bytes(b"half")
    with pytest.raises(ArtifactError, match="is damaged"):
        read_mistakes(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"images/test": torch.zeros(2, 3, 4, 4).byte()}, "unknown names: images/test"),
        ({"rows/test": torch.arange(2)}, "no tensor images/test"),
        ({"rows/test": torch.tensor([-1])}, "rows/test should hold numbers from 0"),
        ({"rows/test": torch.zeros(2)}, "rows/test should be int64"),
        (
            {"rows/test": torch.arange(3), "images/test": torch.zeros(2, 3, 4, 4).byte()},
            r"images/test should be uint8 of shape \(3, 3, height, width\)",
        ),
    ],
)
def test_mistakes_of_another_form_are_refused(
    tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    save_file(tensors, tmp_path / "mistakes.safetensors")
    with pytest.raises(ArtifactError, match=message):
        read_mistakes(tmp_path / "mistakes.safetensors")
