"""The page of ``goen score --report`` for pictures with names of strangers."""

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
from goen.gate.score_files import find_files, score_files
from goen.report.score import ScoreReport

from ..own_model import LAYERS, digits, preprocess, trained

HOSTILE = ("<img src=x onerror=alert(1)>.png", "a&amp;b'\"`${1}.png", "<!--<script>.png")
"""Names of files that a careless page would execute or swallow."""


@dataclass(frozen=True)
class Scored:
    """Pictures in a folder, the gate that scored them, and the page."""

    page: Path
    gate: Gate
    files: list[Path]
    images: Pixels


def own_gate() -> Gate:
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


def write_pictures(folder: Path) -> list[Path]:
    """Digits, OOD pictures and noise, some under hostile names, and two files that are broken."""
    p = digits()
    images = [
        *p.test.read(range(100)),
        *p.evaluation["unseen-digits"].images.read(range(40)),
        *p.evaluation["photographs"].images.read(range(10)),
    ]
    names = [*HOSTILE, *(f"picture {i:03}.png" for i in range(len(images) - len(HOSTILE)))]
    folder.mkdir(parents=True)
    for name, pixels in zip(names, reversed(images), strict=True):
        picture = Image.fromarray(pixels.transpose(1, 2, 0))
        picture.resize((96, 64), Image.Resampling.BICUBIC).save(folder / name)
    for name in ("broken.png", "</b><svg onload=alert(2)>.png"):
        (folder / name.replace("/", "_")).write_bytes(b"no picture")
    return find_files([folder]).files


def scored(root: Path, most: int = 2000) -> Scored:
    """Score the pictures and write their page, with training images."""
    files = write_pictures(root / "pictures")
    gate = own_gate()
    report = ScoreReport(gate, "my-gate", digits().train, most=most)
    seen: list[Pixels] = []
    read: list[Path] = []

    def watch(batch: Any) -> None:
        seen.append(batch.images)
        read.extend(batch.files)
        report.watch(batch)

    score_files(gate, files, lambda scored: report.watch_row(scored.row), watch)
    report.write(root / "page.html")
    return Scored(root / "page.html", gate, read, np.concatenate(seen))


def walls(page: Path) -> dict[str, Mapping[str, Any]]:
    """What the script of a page is given, by the name of the wall."""
    text = page.read_text(encoding="utf-8")
    pattern = r'<div class="wall[ \w]*" id="([^"]+)"><script type="application/json">(.*?)</script>'
    return {name: json.loads(data) for name, data in re.findall(pattern, text, re.DOTALL)}
