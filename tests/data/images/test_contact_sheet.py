from pathlib import Path

import numpy as np
from PIL import Image

from goen.data import ImageSet
from goen.data.images.contact_sheet import class_sheet, save_png


def test_each_row_shows_its_class_in_its_colours(tmp_path: Path) -> None:
    colours = np.array([[250, 0, 0], [0, 250, 0], [0, 0, 250]], np.uint8)
    labels = np.arange(30) % 3
    pixels = np.broadcast_to(colours[labels][:, :, None, None], (30, 3, 32, 32)).copy()
    save_png(
        class_sheet(ImageSet("tri", pixels, labels, ("r", "g", "b")), columns=5), tmp_path / "s.png"
    )
    sheet = np.asarray(Image.open(tmp_path / "s.png"))
    # Three classes get two rows each, 68 pixels apart, below a title of 36 pixels.
    for row in range(6):
        line = sheet[36 + row * 68 + 10]
        shown = {tuple(p) for p in line if p.max() - p.min() > 200}
        assert shown == {tuple(colours[row // 2])}


def test_many_classes_are_thinned_and_said(tmp_path: Path) -> None:
    greys = np.broadcast_to(np.arange(100, dtype=np.uint8)[:, None, None, None], (100, 3, 8, 8))
    images = ImageSet("many", greys, np.arange(100), tuple(map(str, range(100))))
    sheet = class_sheet(images)
    assert sheet.height == 36 + 24 * 68
    shown = np.asarray(sheet)[36 + 34 :: 68, :, 0].min(axis=1)  # names of classes are lighter
    assert shown.tolist() == np.linspace(0, 99, 24).round().tolist()


def test_many_images_of_a_class_are_evenly_spaced() -> None:
    greys = np.broadcast_to(np.arange(91, dtype=np.uint8)[:, None, None, None], (91, 3, 8, 8))
    sheet = np.asarray(class_sheet(ImageSet("one", greys, np.zeros(91), ("",)), columns=5))
    tiles = sheet[36 + 34 :: 68, 12 + 34 :: 68, 0]
    assert tiles.ravel().tolist() == np.linspace(0, 90, 30).astype(int).tolist()


def test_one_lonely_image_is_enough() -> None:
    assert (
        class_sheet(ImageSet("one", np.zeros((1, 3, 8, 8), np.uint8), np.zeros(1), ("a",))).width
        > 68
    )
