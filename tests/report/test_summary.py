"""What a study records about itself."""

from pathlib import Path

import pytest

from goen.errors import ArtifactError
from goen.io.results import Origin
from goen.report.summary import Split, Summary, read_summary

CONTENT = {
    "study": "run",
    "data": "digits",
    "config": {"seed": 0},
    "titles": {"knn": ["KNN", "post-hoc"]},
    "missing": {"places": "not here"},
    "skipped": {"vim": "no weights"},
    "seeds": [0, 7],
    "metadata": {
        "recipe": {"width": 8},
        "splits": {"train": {"name": "t", "images": 5, "fingerprint": "ab"}},
    },
}


def test_every_field_is_read_with_its_type() -> None:
    summary = Summary.from_json(CONTENT)
    assert summary.titles == {"knn": ("KNN", "post-hoc")}
    assert summary.left_out == {"places": "not here", "vim": "no weights"}
    assert summary.seeds == (0, 7)
    assert summary.recipe == {"width": 8}
    assert summary.splits == {"train": Split("t", 5, "ab")}
    assert summary.uses_ood == frozenset()
    assert summary.threshold is None


def test_unseen_sets_come_first_whether_or_not_a_row_has_seen_the_others() -> None:
    origin = Origin("knn", "full", 0, "net", ("train:1",))
    results = origin.rows("test", "id", {"accuracy": 1.0})
    for name, group in (("noise", "noise"), ("far-set", "far"), ("near-set", "near")):
        results += origin.rows(name, group, {"auroc": 0.5}, seen=name == "far-set")  # type: ignore[arg-type]
    summary = Summary.from_json({**CONTENT, "calibration_ood": ["photographs", "noise"]})
    groups, seen = summary.unseen_first(results)
    assert list(groups.items()) == [("near-set", "near"), ("noise", "noise"), ("far-set", "far")]
    assert seen == {"noise", "far-set"}  # photographs are not among the results


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": 3}, "data should be text"),
        ({"titles": {"knn": ["KNN"]}}, "a title and a section"),
        ({"titles": ["knn"]}, "titles should be an object"),
        ({"missing": {"places": 1}}, "places should be text"),
    ],
)
def test_a_field_of_another_type_is_an_error(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Summary.from_json({**CONTENT, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_a_folder_without_a_summary_is_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(ArtifactError, match="does not hold a finished run"):
        read_summary(tmp_path)
