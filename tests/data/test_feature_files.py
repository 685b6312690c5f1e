"""Features in files of four kinds, and files that are none."""

import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from goen.data.feature_files import read_features, read_tensor_file, write_features
from goen.errors import DataCorrupt, DataError, UsageError
from goen.io import limits
from goen.outputs import LinearClassifier, Outputs, check_classifier

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


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, lambda values: pa.list_(values, 4)])
def test_lists_of_every_kind_are_features(kind: Callable[..., pa.DataType], tmp_path: Path) -> None:
    table = pa.table({"clip": pa.array(X.tolist(), kind(pa.float32())), "label": LABELS})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert np.array_equal(read_features(tmp_path / "rows.parquet").arrays["clip"], X)


def test_rows_of_different_lengths_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1.0, 2.0], [3.0]]}), tmp_path / "rows.parquet")
    with pytest.raises(DataCorrupt, match="cannot be read"):
        read_features(tmp_path / "rows.parquet")


def test_an_array_is_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", X)
    (tmp_path / "rows.npy").rename(tmp_path / "rows.npz")
    with pytest.raises(DataCorrupt, match="not a zip file"):
        read_features(tmp_path / "rows.npz")


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    with (tmp_path / "rows.npy").open("wb") as file:
        np.savez(file, a=X)
    with pytest.raises(DataCorrupt, match=r"an archive of arrays; name it \.npz"):
        read_features(tmp_path / "rows.npy")


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


def npy(header: str, data: bytes = bytes(64)) -> bytes:
    """An NPY file with this header."""
    text = header.encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize(
    "shape", ["(-1, 4)", "(9" + "9" * 22 + ", 4)", "(True, 4)", "((((", "(2, 0)"]
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_headers_that_lie_are_one_sentence(shape: str, suffix: str, tmp_path: Path) -> None:
    content = npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}")
    file = tmp_path / f"a{suffix}"
    file.write_bytes(content)
    if suffix == ".npz":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", content)
    with pytest.raises(DataCorrupt, match=f"a{suffix}"):
        read_features(file)


def test_an_archive_that_claims_terabytes_is_one_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        shape = "(1000000, 1000000)"
        archive.writestr(
            "x.npy", npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}")
        )
    with pytest.raises(DataCorrupt, match="cannot be read"):
        read_features(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_small_file_does_not_become_a_large_array(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, zeros = tmp_path / f"a{suffix}", np.zeros((2000, 500))
    if suffix == ".npz":
        np.savez_compressed(file, x=zeros)
    else:
        pq.write_table(pa.table({"x": [*zeros]}), file, compression="zstd")
    monkeypatch.setattr(limits, "UNPACKED_BYTES", zeros.nbytes)
    assert read_features(file).arrays["x"].shape == zeros.shape
    monkeypatch.setattr(limits, "UNPACKED_BYTES", zeros.nbytes - 1)
    with pytest.raises(DataCorrupt, match=rf"too large for a file of {file.stat().st_size:,}"):
        read_features(file)
    monkeypatch.setattr(limits, "UNPACKED_TIMES", zeros.nbytes)
    assert read_features(file).arrays["x"].shape == zeros.shape


def test_one_long_label_does_not_make_all_long(tmp_path: Path) -> None:
    labels = pa.array([*"ab" * 2000, "c" * 100_000])
    pq.write_table(pa.table({"x": [[1.0]] * 4001, "labels": labels}), tmp_path / "a.parquet")
    with pytest.raises(DataCorrupt, match="too large for a file of"):
        read_features(tmp_path / "a.parquet")


def test_damage_in_a_compressed_archive_is_one_sentence(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(50, 4)))
    whole = (tmp_path / "a.npz").read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 255
        (tmp_path / "a.npz").write_bytes(damaged)
        try:
            read_features(tmp_path / "a.npz")
        except DataCorrupt as error:
            assert "a.npz" in str(error)


def test_other_files_in_an_archive_are_passed_over(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((3, 4)))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("README.txt", "of these features")
    assert [*read_features(tmp_path / "a.npz").arrays] == ["x"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float16])
def test_short_floats_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    save_tensors({"x": values.to(dtype)}, tmp_path / "a.safetensors")
    found = read_features(tmp_path / "a.safetensors").arrays["x"]
    assert found.tolist() == values.tolist()
    assert found.dtype == (np.float16 if dtype == torch.float16 else np.float32)


def test_labels_of_bytes_are_utf_8(tmp_path: Path) -> None:
    names = np.array(["café".encode(), b"tea"])
    np.savez(tmp_path / "a.npz", x=np.ones((2, 4)), labels=names)
    labels = read_features(tmp_path / "a.npz").labels
    assert labels is not None
    assert labels.tolist() == ["café", "tea"]
    np.savez(tmp_path / "a.npz", x=np.ones((2, 4)), labels=np.array([b"caf\xe9", b"tea"]))
    with pytest.raises(DataCorrupt, match="cannot be read"):
        read_features(tmp_path / "a.npz")


def written() -> Outputs:
    """Features in an order that is not that of their names, with a classifier and labels."""
    z, early = torch.randn(9, 4), torch.randn(9, 2)
    classifier = LinearClassifier(torch.randn(3, 4), torch.randn(3), "z")
    logits = classifier.logits(z)
    features = {"z": z, "early": early}
    return Outputs(logits, features, torch.rand(9), classifier, torch.arange(9) % 3)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_was_written_is_read(suffix: str, tmp_path: Path) -> None:
    outputs, file = written(), tmp_path / f"rows{suffix}"
    write_features(file, outputs, ["eel", "cat", "dog"])
    read = read_features(file)
    assert read.classes == ("eel", "cat", "dog")
    assert [name for name in read.arrays if name != "logits"] == ["z", "early"]
    found = read.outputs()
    assert torch.equal(found.logits, outputs.logits)
    assert [*found.features] == ["z", "early"]
    for name, values in outputs.features.items():
        assert torch.equal(found.features[name], values)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2] * 3
    classifier = check_classifier(found)
    assert classifier.feature == "z"
    assert torch.equal(classifier.weight, outputs.classifier.weight)  # type: ignore[union-attr]
    assert torch.equal(classifier.bias, outputs.classifier.bias)  # type: ignore[union-attr]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_outputs_lack_is_not_in_the_file(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows{suffix}"
    write_features(file, Outputs(torch.rand(2, 3), {"z": torch.rand(2, 4)}))
    read = read_features(file)
    assert (read.labels, read.classifier, read.classes) == (None, None, ())
    assert read.outputs().classifier is None
    with pytest.raises(UsageError, match="exists"):
        write_features(file, written())
    write_features(file, written(), overwrite=True)
    assert len(read_features(file)) == 9


def test_files_and_names_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"written to \.npz or \.safetensors files, got .*\.npy"):
        write_features(tmp_path / "rows.npy", written())
    with pytest.raises(UsageError, match="labels is no feature"):
        write_features(tmp_path / "a.npz", Outputs(torch.rand(2, 3), {"labels": torch.rand(2, 4)}))
    assert not [*tmp_path.iterdir()]


def test_a_classifier_written_by_hand_reads_the_last_feature(tmp_path: Path) -> None:
    weight = np.eye(3, 4, dtype=np.float16)
    arrays = {"a": X, "b": X, "logits": X[:, :3], "classifier.weight": weight}
    np.savez(tmp_path / "rows.npz", **arrays)
    found = check_classifier(read_features(tmp_path / "rows.npz").outputs())
    assert found.feature == "b"
    assert found.weight.dtype == torch.float32
    for name, value in (
        ("classifier.weight", np.eye(2, 4)),
        ("classifier.weight", np.eye(3, 4, dtype=int)),
        ("classifier.bias", np.zeros(2)),
        ("classifier.bias", np.zeros(3, complex)),
    ):
        np.savez(tmp_path / "bad.npz", **arrays | {name: value})
        with pytest.raises(DataCorrupt, match=r"cannot be read: classifier\.weight should be"):
            read_features(tmp_path / "bad.npz")
    np.savez(tmp_path / "bad.npz", **arrays, **{"classifier.feature": np.array("c")})
    with pytest.raises(DataCorrupt, match="cannot be read"):
        read_features(tmp_path / "bad.npz")


def test_a_file_without_logits_is_no_outputs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Outputs have logits; the file has features"):
        read_features(write(tmp_path / "rows.npy")).outputs()


def test_files_of_one_folder_have_one_classifier(tmp_path: Path) -> None:
    outputs = written()
    classifier = outputs.classifier
    assert classifier is not None
    write_features(tmp_path / "a.npz", outputs)
    write_features(tmp_path / "b.npz", outputs)
    assert len(read_features(tmp_path)) == 18
    other = replace(classifier, bias=classifier.bias + 1)
    write_features(tmp_path / "b.npz", replace(outputs, classifier=other), overwrite=True)
    with pytest.raises(DataCorrupt, match="in their classes or classifier"):
        read_features(tmp_path)


def test_files_of_one_folder_have_one_width(tmp_path: Path) -> None:
    for name, width in (("a", 3), ("b", 4)):
        np.savez(tmp_path / f"{name}.npz", features=np.zeros((2, width)))
    with pytest.raises(DataCorrupt, match=r"b\.npz and .*a\.npz differ in the names or widths"):
        read_features(tmp_path)
