"""Features in files of four kinds, and files that are none."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from goen.data.feature_files import read_features, read_tensor_file
from goen.errors import DataCorrupt, DataError, UsageError

X = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
LOGITS = X[:, :3].astype(np.float64)
LABELS = np.arange(7) % 3
NAMES = np.array(["cat", "dog", "eel"])[LABELS]


def write(file: Path, labels: np.ndarray | None = LABELS) -> Path:
    arrays = {"clip": X, "logits": LOGITS} | ({} if labels is None else {"labels": labels})
    if file.suffix == ".npy":
        np.save(file, X)
    elif file.suffix == ".npz":
        np.savez(file, **arrays)
    elif file.suffix == ".safetensors":
        save_file(arrays, file)
    else:
        table = {"clip": list(X), "logits": list(LOGITS), "id": [f"row {i}" for i in range(7)]}
        pq.write_table(pa.table(table | ({} if labels is None else {"label": labels})), file)
    return file


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_arrays_by_name_with_labels(suffix: str, tmp_path: Path) -> None:
    found = read_features(write(tmp_path / f"rows{suffix}"))
    assert [*found.arrays] == ["clip", "logits"]
    assert np.array_equal(found.arrays["clip"], X)
    assert np.array_equal(found.arrays["logits"], LOGITS)
    assert found.labels is not None
    assert found.labels.tolist() == LABELS.tolist()
    assert len(found) == 7
    assert read_features(write(tmp_path / f"none{suffix}", None)).labels is None


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_labels_may_be_names(suffix: str, tmp_path: Path) -> None:
    found = read_features(write(tmp_path / f"rows{suffix}", NAMES))
    assert found.labels is not None
    assert found.labels.tolist() == NAMES.tolist()


def test_one_array_is_mapped_into_memory(tmp_path: Path) -> None:
    found = read_features(write(tmp_path / "rows.npy"))
    assert [*found.arrays] == ["features"]
    assert isinstance(found.arrays["features"], np.memmap)
    assert np.array_equal(found.arrays["features"], X)


def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    for name in ("rows.npy", "rows.npz"):
        objects = np.array([{"a": 1}], dtype=object)
        (np.save if name.endswith("npy") else np.savez)(tmp_path / name, objects)
        with pytest.raises(DataCorrupt, match=r"cannot be read: .*(allow_pickle|Python objects)"):
            read_features(tmp_path / name)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet"])
def test_damaged_files_are_one_sentence(suffix: str, tmp_path: Path) -> None:
    file = write(tmp_path / f"rows{suffix}")
    whole = file.read_bytes()
    for damaged in (b"", b"x", whole[:30], whole[: len(whole) // 2], b"\x00" * 100):
        file.write_bytes(damaged)
        with pytest.raises(DataCorrupt, match="cannot be read"):
            read_features(file)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": LABELS}, "holds no features"),
        ({"a": X[0]}, r"a should be an array \(N, D\) of floats, got \(4,\)"),
        ({"a": LABELS[:, None]}, "of floats, got .* of int64"),
        ({"a": X, "b": X[:3]}, "as many rows of each"),
        ({"a": X, "labels": LABELS[:2]}, "as many rows of each"),
        ({"a": X[:0]}, "one or more"),
        ({"a": X, "labels": LABELS / 2}, "whole numbers or names, got float64"),
    ],
)
def test_content_that_is_no_features(
    arrays: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataCorrupt, match=message):
        read_features(tmp_path / "rows.npz")


def test_rows_of_different_lengths_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1.0, 2.0], [3.0]]}), tmp_path / "rows.parquet")
    with pytest.raises(DataCorrupt, match="cannot be read"):
        read_features(tmp_path / "rows.parquet")


def test_an_array_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", X)
    (tmp_path / "rows.npy").rename(tmp_path / "rows.npz")
    with pytest.raises(DataCorrupt, match="one array, not an archive"):
        read_features(tmp_path / "rows.npz")


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.npy, \.npz, .* got .*rows\.csv"):
        read_features(tmp_path / "rows.csv")
    with pytest.raises(DataError, match="does not exist"):
        read_features(tmp_path / "rows.npy")


def test_arrays_of_any_shape_and_type(tmp_path: Path) -> None:
    ids, waves = np.ones((4, 7), np.int64), np.zeros((4, 2, 3), np.float32)
    labels = np.array(["a", "b", "a", "b"])
    np.savez(tmp_path / "rows.npz", input_ids=ids, waves=waves, labels=labels)
    found = read_tensor_file(tmp_path / "rows.npz")
    assert len(found) == 4
    some = found.inputs(slice(1, 3))
    assert isinstance(some, dict)
    assert {name: part.shape for name, part in some.items()} == {
        "input_ids": (2, 7),
        "waves": (2, 2, 3),
    }
    assert found.labels is not None
    with pytest.raises(DataCorrupt, match=r"input_ids should be an array \(N, D\) of floats"):
        read_features(tmp_path / "rows.npz")
    np.save(tmp_path / "rows.npy", waves)
    alone = read_tensor_file(tmp_path / "rows.npy").inputs()
    assert isinstance(alone, np.ndarray)
    assert alone.shape == (4, 2, 3)
    np.savez(tmp_path / "words.npz", words=labels)
    with pytest.raises(DataCorrupt, match=r"words should be an array \(N, ...\) of numbers"):
        read_tensor_file(tmp_path / "words.npz")
