from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.data.images.decoding import read_image
from goen.data.sets.image_lists import listed_images, read_image_list
from goen.data.sets.store import prepare_set
from goen.errors import DataCorrupt, DataMissing

PUBLISHED = [
    "cifar10/test/airplane/0298.png 0",
    "imagenet_1k/val/ILSVRC2012_val_00024235.JPEG 7 ",
    "",
    "texture/images/banded/banded_0002.jpg -1",
]


def test_a_list_of_the_published_form(tmp_path: Path) -> None:
    file = tmp_path / "test.txt"
    file.write_text("\n".join(PUBLISHED))
    paths, labels = read_image_list(file)
    assert paths == [line.split()[0] for line in PUBLISHED if line]
    assert labels.tolist() == [0, 7, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/etc/passwd 0", r"line 1: '/etc/passwd' is not a path within the images"),
        ("a.png 0\nb/../../c.png 1", r"line 2: 'b/\.\./\.\./c\.png' is not a path within"),
        ("a.png", r"line 1 should be a path, a space and a class number \(-1: OOD\), got 'a\.png'"),
        ("a.png {'x': 1}", "line 1 should be a path, a space and a class number"),
        ("\n", "names no images"),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "test.txt"
    file.write_text(text)
    with pytest.raises(DataCorrupt, match=message):
        read_image_list(file)
    with pytest.raises(DataMissing, match="is one of OpenOOD's lists"):
        read_image_list(tmp_path / "other.txt")


def test_listed_images_are_a_set_in_the_order_of_the_lists(tmp_path: Path) -> None:
    lists = [tmp_path / "one.txt", tmp_path / "two.txt"]
    lists[0].write_text("b.png 1\na.png 0\n")
    lists[1].write_text("c.png 1\n")
    for number, name in enumerate("abc"):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{name}.png")
    found = prepare_set(listed_images(lists, tmp_path, ("x", "y"), read_image), "both")
    assert found.read()[:, 0, 0, 0].tolist() == [1, 0, 2]
    assert (found.labels.tolist(), found.classes) == ([1, 0, 1], ("x", "y"))
    one = prepare_set(listed_images(lists, tmp_path, ("ood",), read_image), "both")
    assert np.array_equal(one.labels, [0, 0, 0])
    lists[0].write_text("a.png -1\n")
    with pytest.raises(DataCorrupt, match=r"should have labels 0\.\.2; it has -1\.\.-1"):
        listed_images(lists[:1], tmp_path, ("x", "y", "z"), read_image)
