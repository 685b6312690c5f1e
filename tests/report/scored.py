"""The page of ``goen score --report`` for images with names of strangers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from goen.data.imageset import Pixels
from goen.gate import Gate
from goen.report.pages.score import ScoreReport
from goen.scoring.pipeline import ScoredBatch
from tests.image_sources import scored_rows
from tests.own_model import LAYERS, digits, preprocess, trained

HOSTILE = ("<img src=x onerror=alert(1)>.png", "a&amp;b'\"`${1}.png", "<!--<script>.png")
"""Names of files that a careless page would execute or swallow."""


@dataclass(frozen=True)
class Scored:
    """Images in a folder, the gate that scored them, and the page."""

    page: Path
    gate: Gate
    files: list[Path]
    images: Pixels


def own_gate() -> Gate:
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


def write_images(folder: Path) -> list[Path]:
    """Digits, OOD images and noise, some under hostile names, and two files that are broken."""
    p = digits()
    images = [
        *p.test.read(range(100)),
        *p.evaluation["unseen-digits"].images.read(range(40)),
        *p.evaluation["photographs"].images.read(range(10)),
    ]
    names = [*HOSTILE, *(f"image {i:03}.png" for i in range(len(images) - len(HOSTILE)))]
    folder.mkdir(parents=True)
    for name, pixels in zip(names, reversed(images), strict=True):
        image = Image.fromarray(pixels.transpose(1, 2, 0))
        image.resize((96, 64), Image.Resampling.BICUBIC).save(folder / name)
    for name in ("broken.png", "</b><svg onload=alert(2)>.png"):
        (folder / name.replace("/", "_")).write_bytes(b"no image")
    return sorted(folder.iterdir())


def scored(root: Path, most: int = 2000) -> Scored:
    """Score the images and write their page, with training images."""
    files = write_images(root / "images")
    gate = own_gate()
    report = ScoreReport(gate, "my-gate", digits().train, most=most)
    seen: list[ScoredBatch] = []
    watch = report.images.watch

    def seeing(gate: Gate, batch: ScoredBatch) -> None:
        seen.append(batch)
        watch(gate, batch)

    report.images.watch = seeing  # type: ignore[method-assign]
    scored_rows(gate, *files, observer=report.images)
    report.write(root / "page.html")
    read = [Path(name) for batch in seen for name in batch.names]
    images = np.concatenate([batch.images for batch in seen])
    return Scored(root / "page.html", gate, read, images)


def galleries(page: Path) -> dict[str, Mapping[str, Any]]:
    """What the script of a page is given, by the name of the gallery."""
    text = page.read_text(encoding="utf-8")
    pattern = (
        r'<div class="gallery[ \w]*" id="([^"]+)"><script type="application/json">(.*?)</script>'
    )
    return {name: json.loads(data) for name, data in re.findall(pattern, text, re.DOTALL)}
