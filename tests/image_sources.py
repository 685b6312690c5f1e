"""Images of digits in every source that ``goen score`` reads, and their rows."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from goen.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.scoring.pipeline import Observer, ScoredBatch, ScoreSettings, score
from goen.scoring.sinks import RowSink
from goen.scoring.sources import Sources
from tests.own_model import digits

BROKEN = b"no picture"


def encoded(count: int, broken: int = 3) -> list[bytes]:
    """Digits as contents of PNG files; the one of this number is no picture."""
    contents = []
    for pixels in digits().test.read(np.arange(count) % len(digits().test)):
        content = io.BytesIO()
        Image.fromarray(pixels.transpose(1, 2, 0)).save(content, "png")
        contents.append(content.getvalue())
    if broken < count:
        contents[broken] = BROKEN
    return contents


def write_folder(folder: Path, contents: list[bytes]) -> Path:
    """A file for each, in their order."""
    folder.mkdir(parents=True)
    for number, content in enumerate(contents):
        (folder / f"{number:05}.png").write_bytes(content)
    return folder


def write_parquet(
    file: Path, contents: list[bytes], *, group: int = 10, struct: bool = False, **more: Any
) -> Path:
    """A column ``image`` of bytes, or of structs as Hugging Face writes them."""
    values = [{"bytes": content, "path": None} for content in contents] if struct else contents
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if struct else pa.binary()
    table = pa.table({"image": pa.array(values, kind), "id": range(len(values)), **more})
    pq.write_table(table, file, row_group_size=group)
    return file


def write_tar(file: Path, members: dict[str, bytes]) -> Path:
    """A member for each, in their order."""
    packed = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2"}
    with tarfile.open(file, packed.get(file.suffix, "w")) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file


def scored_rows(
    gate: Gate, *places: Path | str, batch_size: int = 128, observer: Observer | None = None
) -> list[ScoreRow]:
    """The rows that ``goen score`` writes for these places."""
    rows: list[ScoreRow] = []
    sources = Sources([*map(str, places)], gate, 32 * batch_size)
    settings = ScoreSettings(batch_size)
    score(gate, sources, RowSink(rows.append), settings, observer=observer)
    return rows


class Seen:
    """Keeps every batch that is scored."""

    def __init__(self) -> None:
        self.batches: list[ScoredBatch] = []

    def watch(self, gate: Gate, batch: ScoredBatch) -> None:
        self.batches.append(batch)

    def watch_row(self, row: ScoreRow) -> None:
        pass

    def take(self) -> list[ScoredBatch]:
        taken, self.batches = self.batches, []
        return taken

    def merge(self, taken: list[ScoredBatch]) -> None:
        self.batches += taken


def features_gate() -> Gate:
    """A gate of four features without a name."""
    rng = np.random.default_rng(0)
    return Gate.fit_outputs(rng.normal(3, 1, (200, 4)), None, rng.normal(3, 1, (200, 4)))
