"""Rows for files; ``goen score`` itself is tested in tests/cli/test_score.py."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.errors import UsageError
from goen.gate import Gate, Prediction
from goen.gate.score_files import (
    FileCounts,
    ScoredBatch,
    ScoredFile,
    ScoreRow,
    check_not_scored,
    find_files,
    most_unusual_cue,
    prediction_rows,
    score_columns,
    score_files,
    sort_rows,
)
from goen.outputs import Outputs

from ..own_model import LAYERS, digits, ood, preprocess, trained
from .test_gate import make_gate


@pytest.fixture(scope="module")
def gate() -> Gate:
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, pixels in enumerate(digits().test.read(range(130))):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(tmp_path / f"{i:03}.png")
    (tmp_path / "077.png").write_bytes(b"no picture")
    return tmp_path


def test_the_format_of_a_file_does_not_change_its_row(gate: Gate, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    forms = {"jpg": {}, "png": {}, "webp": {"lossless": True}, "bmp": {}, "tiff": {}}
    pixels = digits().test.read(range(20))
    for form, options in forms.items():
        (tmp_path / form).mkdir()
        for number, image in enumerate(pixels):
            width, height = rng.integers(20, 200, 2).tolist()
            picture = Image.fromarray(image.transpose(1, 2, 0)).resize((width, height))
            if form == "jpg":
                picture.save(tmp_path / "jpg" / f"{number:02}.jpg", quality=80)
            else:
                decoded = Image.open(tmp_path / "jpg" / f"{number:02}.jpg")
                decoded.save(tmp_path / form / f"{number:02}.{form}", **options)
    scored: dict[str, list[ScoredFile]] = {form: [] for form in forms}
    for form, found in scored.items():
        files = find_files([tmp_path / form]).files
        assert score_files(gate, files, found.append).scored == 20
    expected = [{**one.row, "path": ""} for one in scored["jpg"]]
    for found in scored.values():
        assert [{**one.row, "path": ""} for one in found] == expected


@pytest.mark.parametrize("batch_size", [128, 7, 1000])
def test_each_file_gets_the_row_of_its_prediction(
    gate: Gate, folder: Path, batch_size: int
) -> None:
    scored: list[ScoredFile] = []
    files = find_files([folder]).files
    counts = score_files(gate, files, scored.append, batch_size=batch_size)
    expected = gate.predict(np.delete(digits().test.read(range(130)), 77, axis=0))
    assert counts == FileCounts(129, int(expected.is_ood.sum()), 1)
    assert [one.file for one in scored] == files
    rows = [one.row for one in scored]
    assert [row["path"] for row in rows] == [str(file) for file in files]
    assert [row["path"] for row in rows if row["error"]] == [str(folder / "077.png")]
    read = [row for row in rows if not row["error"]]
    assert np.allclose([float(row["score"] or 0) for row in read], expected.score, atol=1e-4)
    assert [row["is_ood"] for row in read] == expected.is_ood.tolist()
    assert [row["label"] for row in read] == [expected.classes[i] for i in expected.label]
    for row in rows:
        assert list(row) == ["path", *score_columns(gate), "error"]


def test_the_network_sees_batches_of_that_size(
    gate: Gate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    outputs_of = Gate.outputs

    def counting(self: Gate, images: np.ndarray) -> Outputs:
        seen.append(len(images))
        return outputs_of(self, images)

    monkeypatch.setattr(Gate, "outputs", counting)
    score_files(gate, find_files([folder]).files[:25], lambda _: None, batch_size=10)
    assert seen == [10, 10, 5]
    with pytest.raises(UsageError, match="at least one image, got a batch size of 0"):
        score_files(gate, [], lambda _: None, batch_size=0)


def test_whoever_watches_gets_what_the_network_saw_and_said(gate: Gate, folder: Path) -> None:
    rows: list[ScoreRow] = []
    seen: list[ScoredBatch] = []
    files = find_files([folder]).files
    score_files(gate, files, lambda scored: rows.append(scored.row), seen.append)
    watched = [file for batch in seen for file in batch.files]
    assert watched == [file for file in files if file.name != "077.png"]
    images = np.concatenate([batch.images for batch in seen])
    assert (images == np.delete(digits().test.read(range(130)), 77, axis=0)).all()
    scores = [score for batch in seen for score in batch.prediction.score]
    assert scores == [row["score"] for row in rows if not row["error"]]
    assert [len(batch.outputs) for batch in seen] == [len(batch.files) for batch in seen]


def test_nothing_is_watched_where_nothing_can_be_read(gate: Gate, tmp_path: Path) -> None:
    found: list[ScoredFile] = []
    score_files(gate, [tmp_path / "gone.png"], found.append, lambda _: pytest.fail("a batch"))
    assert found[0].row["error"]


def test_columns_depend_on_what_the_detector_provides(gate: Gate) -> None:
    fixed = ["label", "confidence", "score", "p_value", "is_ood"]
    cues = ["cue_early", "cue_late", "cue_entropy"]
    p_values = ["p_early", "p_late", "p_entropy"]
    assert score_columns(gate) == [*fixed, *cues, *p_values]
    with_ood, _ = gate.update(ood=ood())
    assert score_columns(with_ood) == [
        *fixed[:4], "probability", "is_ood", *cues, *p_values,
    ]  # fmt: skip
    assert score_columns(make_gate(with_head=False)) == [
        *fixed, "cue_log_distance", "cue_similarity", "cue_entropy",
    ]  # fmt: skip


def test_a_layer_called_value_leaves_the_p_value_of_the_score_alone() -> None:
    cues = {"value": 0.3, "value_": 0.001, "stem": 0.2}
    arrays = {name: np.array([p]) for name, p in cues.items()}
    zero, p_value = np.zeros(1), np.array([0.04])
    found = Prediction(
        zero.astype(int), zero, zero, p_value, None, zero < 1, arrays, ("a",), arrays
    )
    [row] = prediction_rows(found)
    assert row["p_value"] == 0.04
    assert (row["p_value_"], row["p_value__"], row["p_stem"]) == (0.3, 0.001, 0.2)
    assert most_unusual_cue(row) == "value_: p = 0.001"
    row["p_value__"] = 0.9
    assert most_unusual_cue(row) == "stem: p = 0.2"
    row["p_stem"] = 0.9
    assert most_unusual_cue(row) == "value: p = 0.3"


def test_files_come_as_given_and_folders_sorted(folder: Path) -> None:
    everything = sorted(folder.iterdir())
    found = find_files([folder / "100.png", folder])
    others = [file for file in everything if file.name != "100.png"]
    assert found.files == [folder / "100.png", *others]
    assert find_files([Path("nowhere")]).files == [Path("nowhere")]  # its row has the error


def test_each_picture_is_found_once_and_other_files_are_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deep").mkdir()
    (folder / "000.png").rename(folder / "deep" / "000.png")
    (folder / "deep" / "a.txt").touch()
    (folder / "notes.TXT").touch()
    (folder / "Makefile").write_text("all:")
    (folder / ".hidden.png").touch()
    expected = [*sorted(folder.glob("*.png"))[1:], folder / "deep" / "000.png"]
    found = find_files([folder])
    assert found.files == expected
    assert found.skipped == Counter({".txt": 2, "no ending": 1, "hidden": 1})
    assert find_files([folder, folder / "deep", folder]) == found
    # `find FOLDER` prints folders and files: each file once, those named with a row in any case.
    monkeypatch.chdir(folder)
    printed = [Path(), *sorted(path.relative_to(folder) for path in folder.rglob("*"))]
    listed = find_files(printed)
    assert sorted(listed.files) == sorted(path for path in printed if path.is_file())
    assert not listed.skipped
    # A file that is given twice keeps its rows: they stand for what was given.
    assert find_files([Path("001.png")] * 2).files == [Path("001.png")] * 2


def rows_of(**columns: list[float | str | bool | None]) -> list[ScoreRow]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def order(rows: list[ScoreRow], column: str) -> str:
    return "".join(str(row["path"]) for row in sort_rows(rows, column))


def test_the_most_suspicious_come_first_and_what_cannot_be_read_last() -> None:
    rows = rows_of(
        path=["c", "a", "u", "b", "d"],
        label=["x", "z", None, "y", "x"],
        confidence=[0.5, 0.9, None, 0.2, 0.4],
        score=[1.0, 3.0, None, None, 3.5],  # None without an error: infinite
        p_value=[0.2, 0.01, None, 0.01, 0.01],
        is_ood=[False, True, None, True, True],
        cue_a=[5.0, 4.0, None, None, 6.0],
        p_a=[0.3, 0.1, None, 0.01, 0.2],
        error=[None, None, "cut short", "not finite", None],
    )
    assert order(rows, "p_value") == "bdacu"  # equal p-values by their scores
    assert order(rows, "score") == "bdacu"
    assert order(rows, "confidence") == "bdcau"
    assert order(rows, "cue_a") == "bdcau"
    assert order(rows, "p_a") == "badcu"
    assert order(rows, "path") == "abcdu"
    assert order(rows, "label") == "dcbau"
    assert order(rows, "is_ood") == "bdacu"
    assert order(rows[::-1], "p_value") == "bdacu"
    assert order([], "p_value") == ""


def test_the_cue_with_the_smallest_p_value_is_named() -> None:
    cues = {"layer2": [0.5, 0.002, 0.5], "layer4": [0.04, 0.002, 0.6], "entropy": [0.3, 0.9, 0.7]}
    arrays = {name: np.array(values) for name, values in cues.items()}
    none = np.zeros(3)
    found = Prediction(none.astype(int), none, none, none, None, none > 0, arrays, ("a",), arrays)
    assert [most_unusual_cue(row) for row in prediction_rows(found)] == [
        "layer4: p = 0.04",
        "layer2, layer4: p = 0.002",
        "layer2: p = 0.5",
    ]
    unexplained = Prediction(none.astype(int), none, none, none, None, none > 0, arrays, ("a",))
    row = next(prediction_rows(unexplained))
    assert most_unusual_cue(row) == "layer2: 0.5, layer4: 0.04, entropy: 0.3"


def test_the_file_to_write_is_not_one_to_score(folder: Path) -> None:
    files = find_files([folder]).files
    (folder / "link.csv").symlink_to(folder / "003.png")
    with pytest.raises(UsageError, match="one of the files to score"):
        check_not_scored(folder / "link.csv", files)
    check_not_scored(folder / "new.csv", files)
    (folder / "other.csv").touch()
    check_not_scored(folder / "other.csv", [*files, Path("x" * 5000)])
