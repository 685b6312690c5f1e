"""Small sets in their official forms, written as their authors write them."""

import dataclasses
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from goen.data.sets.catalogue import KNOWN

PER_BATCH = 6


def random_batch(seed: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (PER_BATCH, 3, 32, 32), dtype=np.uint8)
    return images, rng.integers(0, classes, PER_BATCH)


def shrink(monkeypatch: pytest.MonkeyPatch, name: str, **counts: int | None) -> None:
    """Make goen expect a set of this size, so that tests need not write 150 MB."""
    small = dataclasses.replace(KNOWN[name], splits=counts, fingerprints={})
    monkeypatch.setitem(KNOWN, name, small)  # type: ignore[arg-type]


def binary_batch(images: np.ndarray, labels: np.ndarray, coarse: bool = False) -> bytes:
    head = [np.zeros_like(labels)] if coarse else []
    columns = [c[:, None].astype(np.uint8) for c in (*head, labels)]
    return np.concatenate([*columns, images.reshape(len(images), -1)], axis=1).tobytes()


def python2_batch(images: np.ndarray, labels: np.ndarray, key: bytes = b"labels") -> bytes:
    """A batch as Python 2 and NumPy 1 pickled it, opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    raw = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        b"cnumpy\nndarray\n(I0\nt" + text(b"b") + b"\x87R"
        b"(I1\n(I" + str(len(images)).encode() + b"\nI3072\nt"
        b"cnumpy\ndtype\n(" + text(b"u1") + b"I0\nI1\ntR"
        b"(I3\n" + text(b"|") + b"NNNI-1\nI-1\nI0\ntb"
        b"I00\nT" + struct.pack("<i", len(raw)) + raw + b"tb"
    )
    numbers = b"(l" + b"".join(b"I%d\na" % n for n in labels)
    return b"\x80\x02}(" + text(b"data") + array + text(key) + numbers + b"u."


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
