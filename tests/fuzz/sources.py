"""Hostile sources of ``goen score``: tars, Parquet files and URLs; errors are rows, never the end.

A case scores good images beside what is hostile: each of them gets its row, the number of rows has
a bound, and time and memory are those of the fuzzer.
"""

import gzip
import io
import random
import struct
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from goen.gate.prediction import ScoreRow
from goen.scoring import pipeline, shards, urls
from goen.scoring.pipeline import NumberedShard, ScoreSettings, ShardScorer
from goen.scoring.sources import Sources, check_given
from tests.fuzz.case import Broken, Fuzzer
from tests.fuzz.gates import tiny_gate
from tests.fuzz.web import KINDS, HostileServer

_LARGE = 1 << 25
_MOST_ROWS = 400
_ENDS = (".png", ".jpg", ".tar", ".tar.gz", ".parquet", ".npy", ".npz", "", "/", "/*.png", ".txt")


def image(seed: int, form: str = "PNG") -> bytes:
    """An encoded image."""
    buffer = io.BytesIO()
    colour = tuple(random.Random(seed).randrange(256) for _ in range(3))
    Image.new("RGB", (8, 8), colour).save(buffer, form)
    return buffer.getvalue()


def damaged(draw: random.Random, content: bytes) -> bytes:
    """With a few bytes changed, cut, doubled or put in."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 2, 8))):
        at, kind = draw.randrange(len(found) + 1), draw.randrange(5)
        if kind == 0:
            del found[at:]
        elif kind == 1:
            found[at:at] = found[at : at + draw.randrange(600)]
        elif kind == 2:
            found[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif found:
            found[at % len(found)] = draw.randrange(256)
    return bytes(found)


class SourceFuzzer(Fuzzer):
    """Scores what a subclass makes, with a small gate in this process."""

    seconds = 20.0
    megabytes = 350.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._gate = tiny_gate()
        self.good = folder / "good.png"
        self.good.write_bytes(image(0))

    def score(self, given: list[str], stdin: bytes | None = None) -> str:
        """Score the sources between two good images; one word for the rows of the others."""
        places = [str(self.good), *given, str(self.good)]
        check_given(places)
        stream = None if stdin is None else io.BytesIO(stdin)
        sources = Sources(places, self._gate, 8, stdin=stream)
        rows: list[ScoreRow] = []
        scorer = ShardScorer(self._gate, ScoreSettings(batch_size=8))
        for number, shard in enumerate(sources.shards()):
            rows += (row for part in scorer.rows(NumberedShard(number, shard)) for row in part)
            if len(rows) > _MOST_ROWS:
                raise Broken(f"more than {_MOST_ROWS} rows of {given}")
        counts = Counter(str(row["path"]) for row in rows if row["error"] is None)
        if counts[str(self.good)] != 2:
            raise Broken(f"the good images have {counts[str(self.good)]} rows of {len(rows)}")
        if any(not 10 < len(str(row["error"])) < 20_000 for row in rows if row["error"]):
            raise Broken("an error is no sentence")
        return "read" if len(counts) > 1 else "refused"


class TarFuzzer(SourceFuzzer):
    """Damaged tars, and tars of large members that are nothing but zeros behind a header."""

    name = "tars"

    def run(self, draw: random.Random) -> str:
        packed = draw.choice(("tar", "tar.gz"))
        file = self.folder / f"case.{packed}"
        content = self._tar(draw)
        if draw.random() < 0.7:
            content = damaged(draw, content)
            self.what += ", damaged"
        if packed == "tar.gz":
            content = gzip.compress(content, 1)
            if draw.random() < 0.3:
                content = damaged(draw, content)
        file.write_bytes(content)
        return self.score([str(file)])

    def _tar(self, draw: random.Random) -> bytes:
        buffer, self.what = io.BytesIO(), "tar of"
        form = draw.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            for number in range(draw.randint(1, 5)):
                end = draw.choice((".png", ".tif", ".jpg", ".txt"))
                info = tarfile.TarInfo(f"{draw.choice(('', 'a/', '../', '/'))}{number}{end}")
                content = image(number)
                if draw.random() < 0.2:
                    start = draw.choice((b"", b"II*\0\x08\0\0\0", b"BM", b"P6 9 9 255\n", content))
                    content = start + bytes(_LARGE)
                info.size = len(content)
                if form == tarfile.PAX_FORMAT and draw.random() < 0.2:
                    key = draw.choice(("size", "GNU.sparse.size", "GNU.sparse.map", "path"))
                    info.pax_headers = {key: draw.choice(("-1", "9" * 30, "1,2", "0", "x" * 999))}
                if draw.random() < 0.1:
                    info.type, info.linkname = draw.choice((tarfile.SYMTYPE, tarfile.LNKTYPE)), "x"
                self.what += f" {info.name} {len(content)} {info.type!r} {info.pax_headers}"
                tar.addfile(info, io.BytesIO(content))
        return buffer.getvalue()


class ParquetFuzzer(SourceFuzzer):
    """Damaged Parquet files, their footers above all, and large contents that are named often."""

    name = "parquet"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._bases = []
        small = [image(n) for n in range(9)]
        for packed in ("none", "snappy", "gzip", "zstd"):
            for contents in (small, [None, *small[:3]], [bytes(_LARGE)] * 20):
                for in_struct in (False, True):
                    if packed != "none" or contents[-1] in small:
                        self._bases.append(self._written(contents, packed, in_struct))

    def _written(
        self, contents: Sequence[bytes | None], packed: str, in_struct: bool
    ) -> tuple[str, bytes]:
        file = self.folder / "base.parquet"
        column = pa.array(contents, pa.binary())
        if in_struct:
            column = pa.array([None if c is None else {"bytes": c, "path": ""} for c in contents])
        table = pa.table({"image" if in_struct else "x": column, "number": range(len(contents))})
        pq.write_table(table, file, compression=packed, row_group_size=8)
        what = f"{packed}, {len(contents)} contents of {len(contents[-1] or b'')} bytes"
        return what, file.read_bytes()

    def run(self, draw: random.Random) -> str:
        file = self.folder / "case.parquet"
        self.what, content = draw.choice(self._bases)
        if draw.random() < 0.85:
            content = self._damaged(draw, content)
        file.write_bytes(content)
        listed = self.folder / "list.txt"
        listed.write_text(f"{file}\n")
        return self.score([str(listed)])

    def _damaged(self, draw: random.Random, content: bytes) -> bytes:
        """Anywhere, or in the footer, whose length stays what it is said to be."""
        if draw.random() < 0.3:
            self.what += ", damaged"
            return damaged(draw, content)
        (length,) = struct.unpack("<I", content[-8:-4])
        start = len(content) - 8 - length
        footer = damaged(draw, content[start:-8])
        said = len(footer) if draw.random() < 0.9 else draw.choice((0, 1, 2**31 - 1, 2**32 - 1))
        self.what += f", a footer of {len(footer)} bytes said to have {said}"
        return content[:start] + footer + struct.pack("<I", said) + b"PAR1"


@contextmanager
def _small_limits() -> Iterator[None]:
    """What has no end is cut at a few megabytes, and nobody waits."""
    most = 1 << 22
    listing = {"_MOST_LISTED_BYTES": 1 << 20, "_MOST_FOLDERS": 40, "_DEEPEST": 6}
    with (
        patch.multiple(urls, MOST_BYTES=most, _SECONDS_BETWEEN=0.0, **listing),
        patch.multiple(shards, MOST_BYTES=most, _MOST_COPIED=most),
        patch.object(pipeline, "_WAITS", (0.0, 0.0)),
    ):
        yield


class UrlFuzzer(SourceFuzzer):
    """URLs of a hostile server, given or in a list, in all protocols that need no account."""

    name = "urls"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as file:
            info = tarfile.TarInfo("1.png")
            info.size = len(image(1))
            file.addfile(info, io.BytesIO(image(1)))
        self._server = HostileServer({"good.png": image(1), "good.tar": tar.getvalue()})

    def run(self, draw: random.Random) -> str:
        places = [self._place(draw) for _ in range(draw.randint(1, 4))]
        self.what = " ".join(places)
        listed = "\n".join([*places, f"{self._server.url}/good.png?a=1"])
        if draw.random() < 0.1:
            listed += "\n" + "y" * (1 << 22)
        with _small_limits():
            outcome = self.score(["-"], listed.encode("utf-8", "surrogateescape"))
        if outcome != "read":
            raise Broken("the good URL was not read")
        return outcome

    def _place(self, draw: random.Random) -> str:
        name = draw.choice(("x", "good", "")) + draw.choice(_ENDS)
        host = self._server.url if draw.random() < 0.8 else self._server.dead
        place = f"{host}/{draw.choice(KINDS)}/{name}"
        kind = draw.random()
        if kind < 0.1:
            begin = draw.choice(("simplecache::", "zip://*.png::", "tar://1.png::", "blockcache::"))
            return f"{begin}{place}"
        if kind < 0.2:
            odd = draw.choice(("http://[::1", "http://", "nope://a.png", "ftp://127.0.0.1:1/a.png"))
            return draw.choice((odd, "http://a b/\\x.png", "s3://b/a.png", "http://127.0.0.1:0/**"))
        if kind < 0.3:
            at = draw.randrange(len(place))
            return place[:at] + draw.choice(("?", "#", "%", "[", "\x01", "é", "::")) + place[at:]
        return f"{place}{draw.choice(('', '', '?w=1', '**'))}"
