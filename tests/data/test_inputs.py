from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from goen.data import ImageSet
from goen.data.images.decoding import read_image
from goen.data.images.pixel_format import PixelFormat
from goen.data.input_spec import ImageInputs
from goen.data.inputs import (
    BatchStream,
    as_stream,
    first_inputs,
    require_disjoint_streams,
    tensors,
)
from goen.data.sets.folders import ImageReading
from goen.errors import DataError, LeakError, UsageError


def pixels(count: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 8, 8), dtype=np.uint8)


LABELS = np.arange(10) % 3
FORMS = {
    "an array": lambda: pixels(),
    "a tensor": lambda: torch.from_numpy(pixels()),
    "a pair of arrays": lambda: (pixels(), LABELS),
    "a pair of tensors": lambda: (torch.from_numpy(pixels()), torch.from_numpy(LABELS)),
    "a set": lambda: ImageSet("small", pixels(), LABELS, ("a", "b", "c")),
    "a generator": lambda: ((pixels()[i : i + 3], LABELS[i : i + 3]) for i in range(0, 10, 3)),
    "a loader": lambda: DataLoader(
        TensorDataset(torch.from_numpy(pixels()), torch.from_numpy(LABELS)), batch_size=4
    ),
    "a stream": lambda: as_stream(pixels(), "inner", 4),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images_in_order(form: str) -> None:
    batches = list(as_stream(FORMS[form](), "images", 4))
    assert torch.equal(torch.cat([images for images, _ in batches]), torch.from_numpy(pixels()))
    labels = [labels for _, labels in batches if labels is not None]
    if form in ("an array", "a tensor", "a stream"):
        assert not labels
    else:
        assert torch.cat(labels).tolist() == LABELS.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_the_same_image_in_two_streams_is_refused(form: str) -> None:
    other = as_stream(np.concatenate([pixels(4, seed=1), pixels()[6:9]]), "other", 4)
    given = as_stream(FORMS[form](), "images", 4)
    list(given)  # of an iterable, what was read is known
    with pytest.raises(LeakError, match=r"b shares 3 of its 7 images with a, pixel for pixel"):
        require_disjoint_streams({"a": given, "b": other})
    require_disjoint_streams({"a": given, "b": as_stream(pixels(5, seed=1), "other", 4)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten images: four of class a, three of b, three of c; the numbers of the files go on."""
    for number, label in enumerate(np.sort(LABELS)):
        place = tmp_path / "animals" / "abc"[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels()[number].transpose(1, 2, 0)).save(place / f"{number}.png")
    return tmp_path / "animals"


def joined(stream: BatchStream) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    batches = list(stream)
    return torch.cat([images for images, _ in batches]), [labels for _, labels in batches]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (None, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]),
        (("c", "b", "a", "d"), [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]),  # in the order asked for
        (("b", "d"), [0, 0, 0]),  # the others are left out
        ((), None),
        (("x", "y"), None),  # none of them: no image has a label
    ],
)
def test_a_folder_has_the_labels_of_its_class_folders(
    folder: Path, classes: tuple[str, ...] | None, labels: list[int] | None
) -> None:
    stream = as_stream(folder, "train", 4, reading=ImageReading(classes=classes))
    images, found = joined(stream)
    if labels is None:
        assert found == [None] * len(found)
        assert torch.equal(images, torch.from_numpy(pixels()))
    else:
        assert torch.cat([part for part in found if part is not None]).tolist() == labels
        rows = {"a": range(4), "b": range(4, 7), "c": range(7, 10)}
        order = [row for name in classes or "abc" for row in rows.get(name, ())]
        assert torch.equal(images, torch.from_numpy(pixels()[order]))
    assert (stream.name, stream.count) == ("animals", len(images))


def test_files_are_read_one_by_one_in_the_order_given(folder: Path) -> None:
    files = [folder / "c" / "7.png", str(folder / "a" / "0.png")]
    stream = as_stream(files, "few", 1)
    images, labels = joined(stream)
    assert torch.equal(images, torch.from_numpy(pixels()[[7, 0]]))
    assert (labels, stream.count, stream.name) == ([None, None], 2, "few")
    assert stream.digests().tolist() == as_stream(pixels()[[7, 0]], "x", 4).digests().tolist()
    one, _ = joined(as_stream(str(folder / "b" / "5.png"), "one", 4))
    assert torch.equal(one, torch.from_numpy(pixels()[5:6]))
    several, _ = joined(as_stream([folder / "c", folder / "a" / "0.png"], "both", 4))
    assert torch.equal(several, torch.from_numpy(pixels()[[7, 8, 9, 0]]))


def test_files_are_read_in_the_size_and_channels_asked_for(folder: Path) -> None:
    reading = ImageReading((4, 6), PixelFormat(1))
    for given in (folder, [folder / "a" / "0.png"]):
        images, _ = joined(as_stream(given, "x", 4, reading=reading))
        assert torch.equal(
            images[0],
            torch.from_numpy(
                read_image(folder / "a" / "0.png", (4, 6), pixel_format=PixelFormat(1))
            ),
        )


@pytest.mark.parametrize("labels", [None, [0, 1] * 5])
def test_a_stack_of_images_in_a_file_may_have_labels(
    tmp_path: Path, labels: list[int] | None
) -> None:
    file = tmp_path / "stack.npz"
    np.savez(file, images=pixels(), **({} if labels is None else {"labels": np.array(labels)}))
    images, found = joined(as_stream(file, "x", 16))
    assert torch.equal(images, torch.from_numpy(pixels()))
    assert [None if part is None else part.tolist() for part in found] == [labels]


def test_paths_that_hold_no_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x: files are read as images, and the inputs are tensor"):
        as_stream(str(tmp_path), "x", 4, "tensors")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"holds no images\. 1 file skipped.*1 \.txt"):
        as_stream([tmp_path], "x", 4)


def test_floats_become_float32_and_keep_their_values() -> None:
    floats = torch.from_numpy(pixels()).double() / 255
    ((images, _),) = as_stream(floats, "images", 32)
    assert images.dtype == torch.float32
    assert torch.allclose(images.double(), floats)


def test_reversed_channels_are_taken() -> None:
    reversed_channels = pixels()[:, ::-1]
    ((images, _),) = as_stream(reversed_channels, "images", 32)
    assert np.array_equal(images.numpy(), reversed_channels)


def test_arrays_of_other_machines_and_read_only_ones_are_taken() -> None:
    floats = pixels() / 255
    locked = pixels()
    locked.flags.writeable = False  # torch warns of these, and warnings are errors here
    for given, labels in ((floats.astype(">f4"), LABELS.astype(">i8")), (locked, LABELS)):
        ((images, found),) = as_stream((given, labels), "images", 32)
        assert torch.equal(images, tensors(given.astype(given.dtype.newbyteorder("="))))
        assert found is not None
        assert found.tolist() == LABELS.tolist()
    assert locked.flags.writeable is False


def test_what_lies_below_a_mask_is_not_used() -> None:
    hidden = np.ma.masked_array(pixels(), pixels() > 250)
    for given in (hidden, [hidden], (pixels(), np.ma.masked_array(LABELS, LABELS == 1))):
        with pytest.raises(UsageError, match="masked values"):
            list(as_stream(given, "images", 32))
    assert len(tensors(np.ma.masked_array(pixels()))) == 10


@pytest.mark.parametrize("size", [0, -1, 1.5, None, "4"])
def test_a_batch_size_is_a_whole_number(size: int) -> None:
    with pytest.raises(UsageError, match="at least one image, got a batch size of"):
        as_stream(pixels(), "train", size)


def test_labels_may_be_a_list_of_numbers() -> None:
    (first, labels), _ = as_stream((pixels(), LABELS.tolist()), "images", 8)
    assert len(first) == 8
    assert labels is not None
    assert labels.tolist() == LABELS[:8].tolist()


def test_labels_that_are_no_numbers_are_none() -> None:
    ((_, labels),) = as_stream([(pixels(), tuple("abcdefghij"))], "images", 32)
    assert labels is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a/folder", "a/folder is neither a folder nor a known set .* nor a file with an image"),
        ({"images": 1}, "got dict"),
        (3, "got int"),
        ((pixels(), LABELS[:4]), "train: 10 images need as many labels, got 4"),
        (TensorDataset(torch.zeros(2, 3, 8, 8)), r"one image at a time\. Wrap it: .*DataLoader\("),
    ],
)
def test_what_holds_no_images_is_refused_at_once(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        as_stream(value, "train", 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([pixels(), pixels(), np.zeros((2, 3, 9, 8), np.uint8)], "all of one size, 8×8; got 9×8"),
        ([(pixels(), LABELS[:4])], "10 images come with 10 labels"),
        ([{"images": "a.png"}], "got dict"),
        ([torch.tensor(1.0)], "got Tensor"),
        ((pixels(), torch.tensor(1)), "got Tensor"),
        ([(torch.zeros(3, 8, 8), 1)], "one image at a time"),
    ],
)
def test_batches_that_do_not_fit_are_refused_when_read(batches: list[object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(as_stream(batches, "train", 4))  # type: ignore[arg-type]


def test_an_empty_stream_is_an_error() -> None:
    once = iter([pixels()])
    given = as_stream(once, "train", 4)
    list(given)
    with pytest.raises(DataError, match=r"train has no images\. A generator can be read only once"):
        list(given)


def test_a_stream_of_a_known_size_checks_the_first_batch_too() -> None:
    small = ImageInputs(3, 4, 4)
    given = BatchStream("train", lambda: iter([(torch.zeros(1, 3, 8, 8), None)]), spec=small)
    with pytest.raises(UsageError, match="4×4; got 8×8"):
        list(given)


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_a_float_image_is_the_same_image(kind: torch.dtype) -> None:
    floats = (torch.from_numpy(pixels()).double() / 255).to(kind)
    whole, part = as_stream(pixels(), "a", 4), as_stream(floats[2:5], "b", 4)
    for streams in ({"a": whole, "b": part}, {"a": part, "b": whole}):
        with pytest.raises(LeakError, match="shares 3 of its"):
            require_disjoint_streams(streams)
    require_disjoint_streams({"a": whole, "b": as_stream(1 - floats, "c", 4)})


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 8, 8, device="meta"), "holds values; got one that is meta"),
        (torch.zeros(2, 3, 8, 8).to_sparse(), r"dense tensor .* got one that is torch\.sparse_coo"),
    ],
)
def test_tensors_that_hold_no_values_are_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tensors(images)


def test_the_first_images_stay_in_the_stream() -> None:
    batches = [np.full((n, 3, 8, 8), n, np.uint8) for n in (1, 1, 3)]
    first, stream = first_inputs(as_stream(iter(batches), "some", 2))
    assert len(first) == 2
    assert [len(images) for images, _ in stream] == [1, 1, 3]
