"""A row for every image of a monitor, and its events, in two files beside its state.

The rows of a batch are written first, the state last and in one step. It holds the lengths that
the two files had then. Whoever resumes cuts both files to these lengths, so a batch that was not
finished is as if it had never been begun.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from goen.errors import ArtifactError, UsageError
from goen.io.manifest import JsonObject, Manifest
from goen.io.storage_errors import storage_errors

STATE, IMAGES, EVENTS = "monitor.safetensors", "images.jsonl", "events.jsonl"


class Journal:
    """The files of rows of a ``KeptMonitor``.

    Args:
        folder: of the files.
        gate: the name of the monitor's gate, for people.

    Attributes:
        unreadable: how many files could not be read, and have not been read since.
    """

    def __init__(self, folder: Path, gate: str) -> None:
        self.folder, self.gate = folder, gate
        self.unreadable = 0
        self._seen: set[int] = set()
        self._unread: set[int] = set()
        self._sizes = {IMAGES: 0, EVENTS: 0}

    def begin(self) -> None:
        """Remove what was left by a process that was killed before its first state.

        Raises:
            UsageError: there are rows without their state.
        """
        images = self.folder / IMAGES
        if images.exists() and images.stat().st_size:
            raise UsageError(
                f"{self.folder} holds the rows of a monitor, but not its state ({STATE}). Restore "
                "it, or choose another folder."
            )
        for name in self._sizes:
            (self.folder / name).unlink(missing_ok=True)

    def resume(self, saved: Manifest) -> None:
        """Continue where the state was saved.

        Args:
            saved: see ``to_json``.

        Raises:
            ArtifactError: the files are shorter than they were, or damaged.
            ValueError: this was not saved by a journal.
        """
        self.unreadable = int(saved.number("unreadable"))
        self._sizes = {name: int(saved.number(name)) for name in self._sizes}
        for name, size in self._sizes.items():
            _cut(self.folder / name, size)
            kept = self._seen if name == IMAGES else self._unread
            for row in read_json_lines(self.folder / name):
                if "path" in row:
                    kept.add(_hash(row.text("path")))
        self._unread -= self._seen

    def to_json(self) -> JsonObject:
        """What a state holds of the journal."""
        return {**self._sizes, "unreadable": self.unreadable, "gate": self.gate}

    def is_new(self, path: str) -> bool:
        """Whether no image of this path was counted before."""
        return _hash(path) not in self._seen

    def fresh(self, rows: Sequence[JsonObject]) -> list[JsonObject]:
        """The rows whose path is new, and those without a path.

        A file that could not be read is on record once; it is new when it can be read.

        Raises:
            UsageError: a path that is not text.
        """
        fresh, here = [], set()
        for row in rows:
            path = row.get("path")
            if path is not None and not (isinstance(path, str) and _is_unicode(path)):
                raise UsageError(
                    f"This is not a row of goen score: its path should be text, got {path!r:.80}."
                )
            if path is not None and (not self.is_new(path) or path in here):
                continue
            if path is not None and row.get("label") is None and _hash(path) in self._unread:
                continue
            here.add(path)
            fresh.append(row)
        return fresh

    def append(self, images: Sequence[JsonObject], events: Sequence[JsonObject]) -> None:
        """Write rows of images and events, and remember their paths.

        Raises:
            StorageError: they could not be written.
        """
        for name, rows in ((IMAGES, images), (EVENTS, events)):
            self._sizes[name] = _append(self.folder / name, rows, self._sizes[name])
        counted, unread = _paths(images), _paths(events)
        self.unreadable += sum(event["event"] == "unreadable" for event in events)
        self.unreadable -= len(counted & self._unread)
        self._seen |= counted
        self._unread = (self._unread | unread) - counted


def _paths(rows: Sequence[JsonObject]) -> set[int]:
    return {_hash(str(row["path"])) for row in rows if row.get("path") is not None}


def _append(file: Path, rows: Sequence[JsonObject], size: int) -> int:
    """Append the rows to a file of this size and bring them to the disk; the new size."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # Half a character, which JSON may hold, becomes its escape again.
    encoded = text.encode("utf-8", "backslashreplace")
    with storage_errors(file), file.open("ab") as content:
        content.truncate(size)  # a write that failed may have left half a row
        content.write(encoded)
        content.flush()
        os.fsync(content.fileno())
    return size + len(encoded)


def _cut(file: Path, size: int) -> None:
    """Remove what was written after the state was saved."""
    found = file.stat().st_size if file.is_file() else 0
    if found < size:
        raise ArtifactError(
            f"{file} has {found:,} bytes, but had {size:,} when the state of the monitor was "
            "saved. Restore it, or choose another folder with --out."
        )
    if found > size:
        os.truncate(file, size)


def _is_unicode(text: str) -> bool:
    """Whether it can be written: JSON may hold halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _hash(path: str) -> int:
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest)


def parse_row(line: bytes | bytearray) -> JsonObject:
    """The JSON object in a line.

    Raises:
        ValueError: it holds something else.
    """
    try:
        row = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    return row


def read_json_lines(file: Path) -> Iterator[Manifest]:
    """The objects of a file of JSON lines.

    Raises:
        ArtifactError: a line that is none; the message names it.
    """
    with file.open("rb") as content:
        for number, line in enumerate(content, 1):
            try:
                yield Manifest(parse_row(line))
            except ValueError as error:
                raise ArtifactError(f"{file}, line {number}, is damaged: {error}.") from error
