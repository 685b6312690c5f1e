"""Scores in a folder of shards that one process writes; safe to kill at any time.

    _job.json         what is scored, with which gate and settings; written first
    part-00000.jsonl  the rows of each shard; each file appears whole
    _shards.jsonl     a line for each of them: what was scored, how many rows, the hash of the file
    _manifest.json    totals and the hash of _shards.jsonl; written last, so it means complete

A line is appended when its shard is on the disk. Whoever resumes keeps the shards whose line and
file agree with each other and with what is to be scored, and scores the others. Readers of folders
(pyarrow, Spark) pass over names that begin with ``_``.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Self

from safetensors.torch import load
from torch import uint8

from goen.errors import ArtifactError, UsageError
from goen.gate.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.gate.storage.pickling import gate_files
from goen.io.files import MARKER, whole_file
from goen.io.json_files import json_object, json_rows, parse_object
from goen.io.limits import ROW_BYTES
from goen.io.manifest import JsonObject, Manifest
from goen.io.provenance import versions
from goen.io.stages import LOCK, alone_in
from goen.io.storage_errors import storage_errors
from goen.scoring.pipeline import NumberedShard, ScoreSettings
from goen.scoring.rows import RowCounts, all_columns
from goen.scoring.sinks import RowFormat, open_writer, write_rows
from goen.scoring.sources import Sources

_JOB, _SHARDS, _MANIFEST = "_job.json", "_shards.jsonl", "_manifest.json"
_WRITTEN = re.compile(r"part-\d{5,}\.\w+|\.part-\d{5,}\.\w+\.\d+\.[0-9a-f]+\.tmp")
"""Shards, and temporary files of them that a killed process left."""
_KIND = "goen scores"
_FORM = 1


@dataclass(frozen=True)
class ShardRecord:
    """A line of the list of shards.

    Attributes:
        number: of the shard, from 0.
        file: its name in the folder.
        inputs: the identity of the shard: which inputs it holds.
        sha256: of the file.
        rows: in the file.
        scored: inputs.
        flagged: of those.
        unreadable: inputs that could not be read.
    """

    number: int
    file: str
    inputs: str
    sha256: str
    rows: int
    scored: int
    flagged: int
    unreadable: int

    @classmethod
    def from_json(cls, row: Manifest) -> Self:
        """The record, checked.

        Raises:
            ValueError: what goen does not write.
        """
        row.check_names(list(cls.__dataclass_fields__))
        counts = {n: row.integer(n) for n in ("number", "rows", "scored", "flagged", "unreadable")}
        record = cls(
            file=row.text("file"), inputs=row.text("inputs"), sha256=row.text("sha256"), **counts
        )
        if Path(record.file).name != record.file or min(counts.values()) < 0:
            raise ValueError(f"its file should be a name, its counts 0 or more, got {record}")
        return record


class ScoreFolder:
    """The folder while it is written; use ``open_score_folder``.

    Attributes:
        folder: of the shards.
        row_format: of their files.
        columns: of their rows.
        flagged_only: leave out rows of inputs that are not flagged or cannot be read.
        records: of the finished shards, by number.
    """

    def __init__(
        self, folder: Path, row_format: RowFormat, columns: Sequence[str], flagged_only: bool
    ) -> None:
        self.folder, self.row_format = folder, row_format
        self.columns, self.flagged_only = columns, flagged_only
        self.records = {
            record.number: record for record in _journal(folder) if _is_whole(folder, record)
        }

    def finished(self, task: NumberedShard) -> RowCounts | None:
        """The counts of this shard, if its rows are there; if not, the folder is not complete."""
        found = self.records.get(task.number)
        expected = (task.shard.identity, self._file(task.number))
        if found is not None and (found.inputs, found.file) == expected:
            return RowCounts(found.scored, found.flagged, found.unreadable)
        self.records.pop(task.number, None)
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        return None

    def write(self, task: NumberedShard, batches: Iterable[list[ScoreRow]]) -> RowCounts:
        """Write a shard and its line; the counts of its rows."""
        name = self._file(task.number)
        place = self.folder / name
        with open_writer(place, self.row_format, self.columns, overwrite=True) as write_row:
            counts = write_rows(batches, write_row, flagged_only=self.flagged_only)
        rows = counts.flagged if self.flagged_only else counts.scored + counts.unreadable
        record = ShardRecord(
            task.number, name, task.shard.identity, _hash(place), rows, *astuple(counts)
        )
        self.records[task.number] = record
        with storage_errors(self.folder), (self.folder / _SHARDS).open("ab") as file:
            # A line that a killed process left unfinished ends here, and is passed over.
            file.write(b"\n" + _line(record))
            file.flush()
            os.fsync(file.fileno())
        return counts

    def close(self, shards: int) -> None:
        """The folder is complete: remove what is left of other shards, write the manifest last."""
        records = [self.records[number] for number in range(shards)]
        files = {record.file for record in records}
        for file in self.folder.iterdir():
            if _WRITTEN.fullmatch(file.name) and file.name not in files:
                file.unlink()
        content = b"".join(map(_line, records))
        names = ("rows", "scored", "flagged", "unreadable")
        manifest = {
            "kind": _KIND,
            "form": _FORM,
            "shards": shards,
            "shards_sha256": sha256(content).hexdigest(),
            **{name: sum(getattr(record, name) for record in records) for name in names},
        }
        for name, data in ((_SHARDS, content), (_MANIFEST, _json(manifest))):
            with whole_file(self.folder / name, overwrite=True) as temporary:
                temporary.write_bytes(data)

    def _file(self, number: int) -> str:
        return f"part-{number:05}.{self.row_format}"


@contextmanager
def open_score_folder(
    folder: Path,
    job: JsonObject,
    row_format: RowFormat,
    columns: Sequence[str],
    *,
    flagged_only: bool = False,
    overwrite: bool = False,
) -> Iterator[ScoreFolder]:
    """A new folder for these scores, or the one where they were begun; for one process at a time.

    Args:
        folder: the folder.
        job: what is scored and how; the folder keeps it. See ``describe_job``.
        row_format: of the files of rows.
        columns: of the rows.
        flagged_only: leave out rows of inputs that are not flagged or cannot be read.
        overwrite: whether scores of another job are replaced.

    Raises:
        UsageError: it holds something else, or scores of another job that may not be replaced.
    """
    content = _json({"kind": _KIND, "form": _FORM, **job})
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder of shards. Choose another --out.")
    with alone_in(folder, "scores"):
        other = (folder / _JOB).exists() and (folder / _JOB).read_bytes() != content
        if other and not overwrite:
            raise UsageError(
                f"{folder} holds scores of another job: {_difference(folder / _JOB, content)}. "
                "Replace them with --overwrite, or choose another --out."
            )
        if other:
            _empty(folder)
        if not (folder / _JOB).exists():
            with whole_file(folder / _JOB) as temporary:
                temporary.write_bytes(content)
        yield ScoreFolder(folder, row_format, columns, flagged_only)


def _empty(folder: Path) -> None:
    """Remove the scores of a job; what it was goes last, so that its shards are never another's."""
    kept = {MARKER, LOCK, _JOB}
    for child in [*(c for c in folder.iterdir() if c.name not in kept), folder / _JOB]:
        shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def describe_job(
    sources: Sources, settings: ScoreSettings, row_format: RowFormat, *, flagged_only: bool = False
) -> JsonObject:
    """What the rows depend on; threads and workers are not among it."""
    here, gate = versions(), sources.gate
    return {
        "sources": [place.encode("utf-8", "backslashreplace").decode() for place in sources.given],
        "image_column": sources.column,
        "shard_size": sources.shard_size,
        "batch_size": settings.batch_size,
        "format": row_format,
        "flagged_only": flagged_only,
        "device": settings.device,
        "engine": settings.engine,
        "gate_sha256": gate_identity(gate),
        "columns": all_columns(gate),
        "versions": {name: here[name] for name in ("goen", "torch")},
    }


def gate_identity(gate: Gate) -> str:
    """A hash of what the gate decides by, the same on every machine: its tensors and settings."""
    files = gate_files(gate)
    manifest = json.loads(files["manifest.json"])
    # The versions are those of this process; the probe is an output of the network, whose last
    # bits depend on the processor.
    for name in ("versions", "tensors_sha256"):
        del manifest[name]
    tensors = load(files["tensors.safetensors"])
    tensors.pop("probe", None)
    digest = sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()


def score_shard_files(folder: Path | str) -> list[Path]:
    """The files of rows of a finished job, in order, each checked against its hash.

    Example: ``pyarrow.parquet.read_table(score_shard_files("scores/"))``.

    Raises:
        ArtifactError: the job is not finished, or a file is missing or was changed.
    """
    path = Path(folder)
    if not (path / _MANIFEST).is_file():
        raise ArtifactError(
            f"{path} has no {_MANIFEST}, so no complete scores are there. If the job was "
            "interrupted, the same command continues it."
        )
    try:
        manifest = Manifest(json_object(path / _MANIFEST))
        content = (path / _SHARDS).read_bytes()
        if sha256(content).hexdigest() != manifest.text("shards_sha256"):
            raise ValueError(f"{_SHARDS} was changed after it was written")
        records = json_rows(path / _SHARDS, ShardRecord.from_json)
        for record in records:
            if not _is_whole(path, record):
                raise ValueError(f"{record.file} is missing or was changed")
    except (OSError, ValueError) as error:
        raise ArtifactError(f"The scores in {path} are damaged: {error}. Score again.") from error
    return [path / record.file for record in records]


def _journal(folder: Path) -> Iterator[ShardRecord]:
    """The lines that were written whole, the last of each shard last."""
    with suppress(FileNotFoundError), (folder / _SHARDS).open("rb") as file:
        while line := file.readline(ROW_BYTES):
            with suppress(ValueError):
                yield ShardRecord.from_json(Manifest(parse_object(line)))


def _is_whole(folder: Path, record: ShardRecord) -> bool:
    try:
        return _hash(folder / record.file) == record.sha256
    except OSError:
        return False


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _difference(job: Path, content: bytes) -> str:
    """The fields in which two jobs differ."""
    try:
        before, now = json_object(job), parse_object(content)
    except ValueError as error:
        return f"its {_JOB} is damaged ({error})"
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    shown = (f"{n} was {str(before.get(n))[:80]}, is {str(now.get(n))[:80]}" for n in names)
    return "; ".join(shown)


def _json(content: JsonObject) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _line(record: ShardRecord) -> bytes:
    return (json.dumps(asdict(record)) + "\n").encode()
