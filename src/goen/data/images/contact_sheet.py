"""Contact sheets: images of a set, by class, on one sheet."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from goen.data.imageset import ImageSet, Pixels
from goen.io.files import whole_file

_TILE = 64  # a 32-pixel image, doubled
_GAP = 4
_MOST_ROWS, _FEWEST_ROWS = 24, 6
_BACKGROUND, _INK, _FAINT = "#ffffff", "#1a1a1a", "#6b6b6b"


def class_sheet(images: ImageSet, columns: int = 12) -> Image.Image:
    """Images of each class, a row per class; of many images or classes, evenly spaced ones."""
    classes = np.unique(images.labels)
    title = f"{images.name}: {len(images):,} images"
    if len(classes) > _MOST_ROWS:
        title += f", {_MOST_ROWS} of {len(classes)} classes"
        classes = classes[np.linspace(0, len(classes) - 1, _MOST_ROWS).round().astype(int)]
    lines = max(1, _FEWEST_ROWS // len(classes))  # few classes get several rows each
    rows = []
    for number in classes:
        members = np.flatnonzero(images.labels == number)
        # Evenly spaced, because neighbours in a set are often neighbours in the world.
        shown = min(len(members), lines * columns)
        members = members[np.linspace(0, len(members) - 1, shown).astype(int)]
        for start in range(0, shown, columns):
            name = images.classes[number] if start == 0 else ""
            rows.append((name, images.read(members[start : start + columns])))
    return sheet(title, rows)


def sheet(title: str, rows: list[tuple[str, Pixels]]) -> Image.Image:
    """Rows of images, each with its name at the left."""
    font, small = ImageFont.load_default(18), ImageFont.load_default(14)
    margin = max((int(small.getlength(name)) for name, _ in rows), default=0) + 3 * _GAP
    columns = max(len(images) for _, images in rows)
    step = _TILE + _GAP
    width = max(margin + columns * step, int(font.getlength(title)) + 4 * _GAP)
    canvas = Image.new("RGB", (width, 36 + len(rows) * step), _BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    draw.text((2 * _GAP, 8), title, fill=_INK, font=font)
    for number, (name, images) in enumerate(rows):
        top = 36 + number * step
        draw.text((2 * _GAP, top + _TILE // 2), name, fill=_FAINT, font=small, anchor="lm")
        for place, image in enumerate(images):
            tile = Image.fromarray(image.transpose(1, 2, 0))
            tile = tile.resize((_TILE, _TILE), Image.Resampling.NEAREST)
            canvas.paste(tile, (margin + place * step, top))
    return canvas


def save_png(image: Image.Image, path: Path, *, overwrite: bool = False) -> None:
    """Write a contact sheet, whole or not at all."""
    with whole_file(path, overwrite=overwrite) as temporary:
        image.save(temporary, format="PNG")
