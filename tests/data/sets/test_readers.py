import gzip
import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from goen.data import load_set
from goen.data.sets import readers
from goen.data.sets.catalogue import (
    CIFAR10_CLASSES,
)
from goen.data.sets.readers import (
    Members,
    cifar_records,
    class_folders,
    idx_files,
    read_files,
    stack_file,
    unreadable,
)
from goen.errors import DataCorrupt
from tests.data.cifar10_files import TEST, TRAIN, lay_out
from tests.data.local_sets import PER_BATCH, binary_batch, python2_batch, random_batch, shrink


@pytest.mark.usefixtures("cifar10")
@pytest.mark.parametrize(
    "form",
    ["binary folder", "binary nested", "binary archive", "pickle folder", "pickle archive"],
)
def test_every_form_of_cifar10_holds_the_same_images(form: str, tmp_path: Path) -> None:
    lay_out(form, tmp_path)
    train = load_set("cifar10", "train", data_dir=tmp_path)
    test = load_set("cifar10", "test", data_dir=tmp_path)
    assert (train.read() == np.concatenate([images for images, _ in TRAIN])).all()
    assert train.labels.tolist() == np.concatenate([labels for _, labels in TRAIN]).tolist()
    assert (test.read() == TEST[0]).all()
    assert test.classes == CIFAR10_CLASSES
    assert isinstance(test.pixels, np.memmap)


def test_cifar100_takes_the_fine_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, "cifar100", test=PER_BATCH)
    images, labels = random_batch(3, classes=100)
    (tmp_path / "a" / "cifar-100-binary").mkdir(parents=True)
    (tmp_path / "a/cifar-100-binary/test.bin").write_bytes(
        binary_batch(images, labels, coarse=True)
    )
    (tmp_path / "b" / "cifar-100-python").mkdir(parents=True)
    (tmp_path / "b/cifar-100-python/test").write_bytes(
        python2_batch(images, labels, b"fine_labels")
    )
    for folder in ("a", "b"):
        loaded = load_set("cifar100", data_dir=tmp_path / folder)
        assert loaded.labels.tolist() == labels.tolist()
        assert (loaded.read() == images).all()


def test_svhn_calls_ten_zero_and_turns_the_axes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "svhn", test=3)
    X = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 3), dtype=np.uint8)
    scipy.io.savemat(tmp_path / "test_32x32.mat", {"X": X, "y": np.array([[1], [10], [9]])})
    loaded = load_set("svhn", data_dir=tmp_path)
    assert loaded.labels.tolist() == [1, 0, 9]
    assert loaded.read()[2, 1, 4, 7] == X[4, 7, 1, 2]


def idx_images(images: np.ndarray) -> bytes:
    return struct.pack(">4i", 2051, *images.shape) + images.tobytes()


def idx_labels(labels: np.ndarray) -> bytes:
    return struct.pack(">2i", 2049, len(labels)) + labels.astype(np.uint8).tobytes()


DIGITS = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The two files of a test split of three digits."""
    shrink(monkeypatch, "mnist", test=3)
    return {
        "t10k-images-idx3-ubyte": idx_images(DIGITS),
        "t10k-labels-idx1-ubyte": idx_labels(np.array([7, 2, 1])),
    }


@pytest.mark.parametrize("packed", [(), ("images",), ("labels",), ("images", "labels")])
@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("MNIST/raw", ""),
        ("MNIST/raw", "MNIST"),
        ("MNIST/raw", "MNIST/raw"),
        ("mnist", ""),
        ("", ""),
    ],
)
def test_mnist_is_read_plain_and_packed_as_torchvision_lays_it_out(
    mnist: dict[str, bytes], packed: tuple[str, ...], place: str, named: str, tmp_path: Path
) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for name, content in mnist.items():
        if any(part in name for part in packed):
            (tmp_path / place / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / place / name).write_bytes(content)
    loaded = load_set("mnist", data_dir=tmp_path / named)
    assert loaded.labels.tolist() == [7, 2, 1]
    assert (loaded.read()[:, 1, 2:-2, 2:-2] == DIGITS).all()
    assert loaded.image_shape == (3, 32, 32)


def test_a_gzip_bomb_is_refused(mnist: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in mnist.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb") as file:
        for _ in range(300):
            file.write(bytes(1 << 20))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(bomb.getvalue())
    tracemalloc.start()
    with pytest.raises(DataCorrupt, match=r"ubyte\.gz holds more than 67,108,864 bytes"):
        load_set("mnist", data_dir=tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * 2**20  # 300 MB were announced


@pytest.mark.parametrize(
    "harm", [lambda d: d[:-9], lambda d: b"no gzip", lambda d: d[:20] + b"x" * 9]
)
def test_a_damaged_gzip_file_is_said(
    harm: Callable[[bytes], bytes], mnist: dict[str, bytes], tmp_path: Path
) -> None:
    for name, content in mnist.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    file = tmp_path / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(harm(file.read_bytes()))
    with pytest.raises(DataCorrupt, match=r"images-idx3-ubyte\.gz is not a whole gzip file"):
        load_set("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NHW"])
def test_an_npz_may_have_its_channels_first_last_or_not_at_all(layout: str, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), dtype=np.uint8)
    images[:] = images[:, :1]  # grey, so that all three layouts say the same
    stored = {"NCHW": images, "NHWC": images.transpose(0, 2, 3, 1), "NHW": images[:, 0]}[layout]
    names = np.array(["dots", "stripes"])
    np.savez(tmp_path / "textures.npz", images=stored, labels=np.array([0, 1, 1, 0]), names=names)
    loaded = load_set("textures", data_dir=tmp_path)
    assert (loaded.read() == images).all()
    assert loaded.counts() == {"dots": 2, "stripes": 2}


def test_channels_that_are_first_stay_there_where_the_images_are_three_wide(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 3), dtype=np.uint8)
    labels, names = np.array([0, 1, 1, 0]), np.array(["dots", "stripes"])
    np.savez(tmp_path / "textures.npz", images=images, labels=labels, names=names)
    assert (load_set("textures", data_dir=tmp_path).read() == images).all()


def test_class_folders_are_read_by_name_and_resized(tmp_path: Path) -> None:
    for name, colour in (("b", "blue"), ("a", "red")):
        (tmp_path / "textures" / name).mkdir(parents=True)
        Image.new("RGB", (50, 40), colour).save(tmp_path / "textures" / name / "1.png")
    loaded = load_set("textures", data_dir=tmp_path)
    assert loaded.classes == ("a", "b")
    assert loaded.image_shape == (3, 32, 32)
    assert loaded.read()[:, :, 5, 5].tolist() == [[255, 0, 0], [0, 0, 255]]


@pytest.mark.usefixtures("cifar10")
def test_a_truncated_binary_is_named(tmp_path: Path) -> None:
    lay_out("binary folder", tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataCorrupt, match=r"test_batch\.bin has 18,437 bytes; records of 3,073"):
        load_set("cifar10", "test", data_dir=tmp_path)
    assert not list((tmp_path / "cache" / "sets").iterdir())


@pytest.mark.usefixtures("cifar10")
def test_whole_records_too_few_are_noticed(tmp_path: Path) -> None:
    lay_out("binary folder", tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    file.write_bytes(file.read_bytes()[:-3073])
    with pytest.raises(DataCorrupt, match="should hold the 6 images of cifar10/test and holds 5"):
        load_set("cifar10", "test", data_dir=tmp_path)


@pytest.mark.usefixtures("cifar10")
def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    lay_out("binary archive", tmp_path)
    file = tmp_path / "cifar-10-binary.tar.gz"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(DataCorrupt, match=r"cifar-10-binary\.tar\.gz is not a whole tar"):
        load_set("cifar10", "test", data_dir=tmp_path)


@pytest.mark.usefixtures("cifar10")
def test_a_label_out_of_range_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(binary_batch(TEST[0], np.full(PER_BATCH, 11)))
    with pytest.raises(DataCorrupt, match=r"labels 11\.\.11 for 10 classes; 0\.\.9 were expected"):
        load_set("cifar10", "test", data_dir=tmp_path)


@pytest.mark.parametrize("content", [{"Y": np.ones(3)}, {"X": np.ones((4, 4)), "y": np.ones(3)}])
def test_a_mat_file_without_its_fields_is_said(content: dict[str, object], tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "test_32x32.mat", content)
    with pytest.raises(DataCorrupt, match=r"test_32x32\.mat should hold X \(H, W, 3, N\) of"):
        load_set("svhn", data_dir=tmp_path)


def test_a_mat_file_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "test_32x32.mat").write_bytes(b"<html>not found</html>" * 20)
    with pytest.raises(DataCorrupt, match="not a MATLAB file"):
        load_set("svhn", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"labels": np.zeros(2, int)}, "should hold an array called images"),
        ({"images": np.zeros((2, 3, 4, 4), int), "labels": np.zeros(2, int)}, "holds int64"),
        ({"images": np.full((2, 3, 4, 4), 9.0), "labels": np.zeros(2, int)}, "lie in"),
        ({"images": np.zeros((2, 5, 4, 4), np.uint8), "labels": np.zeros(2, int)}, "3 channels"),
        ({"images": np.zeros((2, 3, 4, 4), np.uint8)}, "has no labels"),
        (
            {"images": np.zeros((2, 3, 4, 4), np.uint8), "labels": np.array([0, -1])},
            r"labels -1\.\.0",
        ),
        ({"images": np.array([object()]), "labels": np.zeros(1, int)}, "it holds object"),
    ],
)
def test_an_npz_that_cannot_be_meant_is_said(
    content: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "textures.npz", **content)
    with pytest.raises(DataCorrupt, match=message):
        load_set("textures", data_dir=tmp_path)


def test_an_empty_class_folder_and_a_corrupt_png_are_named(tmp_path: Path) -> None:
    for name in ("full", "hollow"):
        (tmp_path / "textures" / name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "textures" / "full" / "1.png")
    with pytest.raises(DataCorrupt, match=r"hollow holds no images.*remove the folder"):
        load_set("textures", data_dir=tmp_path)
    (tmp_path / "textures" / "hollow" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    with pytest.raises(DataCorrupt, match=r"hollow/2\.png"):
        load_set("textures", data_dir=tmp_path)
    assert not list((tmp_path / "cache" / "sets").iterdir())


def test_hostile_npz_files_are_one_kind_of_error(tmp_path: Path) -> None:
    file = tmp_path / "textures.npz"
    shape = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 3, 32, 32), }"
    huge = b"\x93NUMPY\x01\x00v\x00" + shape.ljust(117) + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("images.npy", huge)
        archive.writestr("labels.npy", huge)
    with pytest.raises(DataCorrupt, match="it ends early"):
        load_set("textures", data_dir=tmp_path)
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(DataCorrupt, match="broken or cut short"):
        load_set("textures", data_dir=tmp_path)
    np.savez(file, images=np.zeros((1, 8, 8), np.uint8), labels=np.array([2**40]))
    with pytest.raises(DataCorrupt, match="cannot be a class number"):
        load_set("textures", data_dir=tmp_path)
    np.savez(file, images=np.zeros((1, 8, 8), np.uint8), labels=np.array([100_000]))
    with pytest.raises(DataCorrupt, match="100000 cannot be a class number"):
        load_set("textures", data_dir=tmp_path)
    np.savez(file, images=np.zeros((1, 8, 8), np.uint8), labels=np.array([99_999]))
    assert len(load_set("textures", data_dir=tmp_path).classes) == 100_000
    np.savez(file, images=np.zeros((3, 0, 0), np.uint8), labels=np.zeros(3, int))
    with pytest.raises(DataCorrupt, match=r"its shape is \(3, 0, 0\)"):
        load_set("textures", data_dir=tmp_path)


def test_svhn_labels_outside_their_range_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch, "svhn", test=1)
    X = np.zeros((32, 32, 3, 1), np.uint8)
    scipy.io.savemat(tmp_path / "test_32x32.mat", {"X": X, "y": np.array([[-37.5]])})
    with pytest.raises(DataCorrupt, match=r"y should hold 1\.\.10"):
        load_set("svhn", data_dir=tmp_path)


def idx(count: int, side: int, labels: int, magic: int = 2051, extra: int = 0) -> Members:
    pixels = bytes(range(count * side * side)) + bytes(extra)
    images = struct.pack(">4i", magic, count, side, side) + pixels
    return [("images", images), ("labels", struct.pack(">2i", 2049, labels) + bytes(labels))]


def test_an_idx_file_is_whole_to_the_byte() -> None:
    ((images, labels),) = idx_files(idx(1, 2, 1))
    assert images.shape == (1, 3, 6, 6)
    assert images[0, 1, 2:4, 2:4].tolist() == [[0, 1], [2, 3]]
    assert labels.tolist() == [0]
    wrong = (idx(1, 2, 2), idx(2, 2, 1), idx(0, 2, 0), idx(1, 2, 1, 2050), idx(1, 2, 1, extra=1))
    short = [("images", idx(1, 2, 1)[0][1][:-1]), idx(1, 2, 1)[1]]
    for files in (*wrong, short):
        with pytest.raises(DataCorrupt, match="images is not a whole IDX file"):
            idx_files(files)


def test_a_record_has_its_class_before_its_pixels() -> None:
    one = bytes([7, 4, *(n % 256 for n in range(3072))])
    ((images, labels),) = cifar_records([("a", one * 2)], label_bytes=2)
    assert labels.tolist() == [4, 4]
    assert images.shape == (2, 3, 32, 32)
    assert images[1].ravel().tolist() == [n % 256 for n in range(3072)]
    for content in (b"", one[:-1]):
        with pytest.raises(DataCorrupt, match="records of 3,074 bytes were expected"):
            cifar_records([("a", content)], label_bytes=2)


def test_a_file_may_have_just_as_many_bytes_as_a_known_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_MOST_MEMBER_BYTES", 5)
    monkeypatch.setattr(readers, "_MOST_PACKED_BYTES", 7)
    for name, most in (("a", 5), ("a.gz", 7)):
        for size in (most, most + 1):
            content = bytes(size)
            file = tmp_path / name
            file.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
            if size == most:
                assert read_files([file]) == [(str(file), content)]
            else:
                with pytest.raises(DataCorrupt, match=f"holds more than {most} bytes"):
                    read_files([file])


def test_the_reasons_of_the_first_ten_images_are_told() -> None:
    assert str(unreadable(["a."])) == "a."
    reasons = [f"{n}." for n in range(11)]
    ten = " ".join(reasons[:10])
    assert str(unreadable(reasons[:10])) == f"10 images cannot be read. {ten}"
    assert str(unreadable(reasons)) == f"11 images cannot be read. {ten} And 1 others."


def test_chunks_of_a_folder_keep_labels_beside_their_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_FOLDER_CHUNK", 3)
    for label, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        for number in range(4):
            value = 100 * label + number
            Image.new("RGB", (4, 4), (value,) * 3).save(tmp_path / name / f"{number}.png")
    (tmp_path / "a" / "0.png").write_bytes(b"broken")
    (tmp_path / "b" / "1.png").write_bytes(b"broken")
    reading = class_folders(tmp_path, None, None).read()
    chunks = [*reading.chunks()]
    assert [len(chunk.pixels) for chunk in chunks] == [2, 2, 2]
    assert reading.count == 8
    assert reading.image_size == (4, 4)
    values = [int(image[0, 0, 0]) for chunk in chunks for image in chunk.pixels]
    assert values == [1, 2, 3, 100, 102, 103]
    assert [int(n) for chunk in chunks for n in chunk.labels] == [0, 0, 0, 1, 1, 1]
    assert [[*chunk.broken] for chunk in chunks] == [["a/0.png"], ["b/1.png"], []]


def test_some_classes_of_a_stack_in_another_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_FOLDER_CHUNK", 3)
    pixels = np.arange(8, dtype=np.uint8)[:, None, None, None].repeat(3, axis=3)
    pixels = pixels.repeat(5, axis=1).repeat(5, axis=2)
    labels = np.array([0, 1, 2, 0, 0, 0, 2, 1])
    np.savez(tmp_path / "s.npz", images=pixels, labels=labels, names=["x", "y", "z"])
    reading = stack_file(tmp_path / "s.npz", None, ("z", "y")).read()
    chunks = [*reading.chunks()]
    assert (reading.count, reading.classes) == (4, ("z", "y"))
    assert [int(image[0, 0, 0]) for chunk in chunks for image in chunk.pixels] == [1, 2, 6, 7]
    assert [int(n) for chunk in chunks for n in chunk.labels] == [1, 0, 0, 1]
    with pytest.raises(DataCorrupt, match="has no images of the classes w"):
        stack_file(tmp_path / "s.npz", None, ("w",)).read()
    one = stack_file(tmp_path / "s.npz", None, ()).read()
    assert (one.count, one.classes) == (8, ("s",))


def test_a_number_too_large_for_a_class_is_no_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_MOST_CLASSES", 10)
    images = np.zeros((2, 4, 4, 3), np.uint8)
    for most in (9, 10):
        np.savez(tmp_path / "s.npz", images=images, labels=np.array([0, most]))
        source = stack_file(tmp_path / "s.npz", None, None)
        if most == 9:
            assert source.read().classes == tuple("0123456789")
        else:
            with pytest.raises(DataCorrupt, match="A label of 10 cannot be a class number"):
                source.read()
    named = stack_file(tmp_path / "s.npz", None, None, names=tuple("abcdefghijk"))
    assert len(named.read().classes) == 11
    with pytest.raises(DataCorrupt, match=r"labels 0\.\.10 for 10 classes; 0\.\.9 were expected"):
        stack_file(tmp_path / "s.npz", None, None, names=tuple("abcdefghij")).read()
