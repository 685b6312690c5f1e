"""Pictures of digits in every source that ``goen score --workers`` reads."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from .own_model import digits

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
