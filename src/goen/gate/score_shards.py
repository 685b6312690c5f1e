"""Score one shard of pictures; its rows become the content of one file."""

import io
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import get_args

import torch

from goen.checks import check_choice, check_number
from goen.data.forms import PixelForm, Pixels
from goen.data.inputs import check_batch_size
from goen.data.picture_shards import NamedPicture, PictureShard
from goen.gate.gate import Gate
from goen.gate.score_files import (
    DEFAULT_BATCH_SIZE,
    FileCounts,
    image_rows,
    pixels_or_error,
    score_columns,
)
from goen.gate.score_writers import RowFormat, stream_writer
from goen.models.placement import find_device

# Of encoded contents that are held until they are decoded.
_BYTES_AT_ONCE = 1 << 26
# Seconds before a shard is read again.
_WAITS = (1.0, 5.0)


@dataclass(frozen=True)
class ShardSettings:
    """How shards are scored.

    Attributes:
        form: of the files of rows.
        batch_size: images per forward pass.
        flagged_only: leave out rows of pictures that are not flagged or cannot be read.
        threads: of torch in each process; as torch has it if not given.
        device: where the network runs.
    """

    form: RowFormat = "parquet"
    batch_size: int = DEFAULT_BATCH_SIZE
    flagged_only: bool = False
    threads: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_choice("format", self.form, get_args(RowFormat))
        check_batch_size(self.batch_size)
        if self.threads is not None:
            check_number("threads", self.threads, whole=True, at_least=1)


@dataclass(frozen=True)
class ScoredShard:
    """The rows of a shard.

    Attributes:
        content: of the file of its rows.
        rows: how many there are.
        counts: of its pictures.
    """

    content: bytes
    rows: int
    counts: FileCounts


class ShardScorer:
    """Scores shards, one after the other; lives in one process.

    Args:
        gate: scores; it is moved to the device of the settings.
        settings: how.
    """

    def __init__(self, gate: Gate, settings: ShardSettings) -> None:
        self.gate, self.settings = gate, settings
        gate.network.to(find_device(settings.device))
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)

    def score(self, shard: PictureShard) -> ScoredShard:
        """The rows of a shard: those that ``goen score`` gives for its pictures, in their order.

        If the connection to its file is lost, the shard is read again from the beginning.

        Raises:
            OSError: the connection was lost again and again.
        """
        for seconds in _WAITS:
            try:
                return self._score(shard)
            except (ConnectionError, TimeoutError):
                time.sleep(seconds)
        return self._score(shard)

    def _score(self, shard: PictureShard) -> ScoredShard:
        buffer = io.BytesIO()
        stream = io.TextIOWrapper(buffer, encoding="utf-8", newline="")
        columns = ["path", *score_columns(self.gate), "error"]
        rows = pictures = scored = flagged = 0
        with stream_writer(stream, self.settings.form, columns) as write:
            for names, read in _read_ahead(shard, self.settings.batch_size, self.gate):
                for name, row in zip(names, image_rows(self.gate, read), strict=True):
                    pictures += 1
                    scored += row["label"] is not None
                    flagged += bool(row["is_ood"])
                    if row["is_ood"] or not self.settings.flagged_only:
                        rows += 1
                        write({"path": name, **row})
        stream.flush()
        return ScoredShard(buffer.getvalue(), rows, FileCounts(scored, flagged, pictures - scored))


def _read_ahead(
    shard: PictureShard, batch_size: int, gate: Gate
) -> Iterator[tuple[list[str], list[Pixels | str]]]:
    """Names and pixels of each batch of pictures; the next is read while one is scored."""
    pictures, asked = shard.pictures(), (gate.image_size, gate.picture_form)
    with ThreadPoolExecutor() as pool, ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(_read_batch, pictures, batch_size, asked, pool)
        while (batch := coming.result())[0]:
            coming = ahead.submit(_read_batch, pictures, batch_size, asked, pool)
            yield batch


def _read_batch(
    pictures: Iterator[NamedPicture],
    count: int,
    asked: tuple[tuple[int, int], PixelForm],
    pool: Executor,
) -> tuple[list[str], list[Pixels | str]]:
    names: list[str] = []
    read: list[Pixels | str] = []
    while len(names) < count and (some := _some(pictures, count - len(names))):
        names += [picture.name for picture in some]
        read += pool.map(lambda picture: pixels_or_error(lambda: picture.read(*asked)), some)
        del some  # before the next contents are read
    return names, read


def _some(pictures: Iterator[NamedPicture], most: int) -> list[NamedPicture]:
    """So many pictures at most, or fewer if their encoded contents fill the memory for them."""
    some: list[NamedPicture] = []
    held = 0
    for picture in islice(pictures, most):
        some.append(picture)
        held += picture.bytes_held
        if held >= _BYTES_AT_ONCE:
            break
    return some
