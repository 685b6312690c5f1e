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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Self

from goen.errors import ArtifactError, UsageError
from goen.files import Own, storage_errors, whole_file
from goen.gate.score_files import FileCounts
from goen.gate.score_shards import ScoredShard
from goen.runs.json_files import json_object, json_rows, parse_object
from goen.runs.limits import ROW_BYTES
from goen.runs.manifest import JsonObject, Manifest
from goen.runs.stages import alone_in

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
        inputs: the identity of the shard: which pictures it holds.
        sha256: of the file.
        rows: in the file.
        scored: pictures.
        flagged: of those.
        unreadable: pictures that could not be read.
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
        suffix: of their files.
        records: of the finished shards, by number.
    """

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder, self.suffix = folder, suffix
        self.records = {
            record.number: record for record in _journal(folder) if _is_whole(folder, record)
        }

    def has(self, number: int, inputs: str) -> bool:
        """Whether this shard, of these inputs, is finished; if not, the folder is not complete."""
        found = self.records.get(number)
        if found is not None and (found.inputs, found.file) == (inputs, self._file(number)):
            return True
        self.records.pop(number, None)
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        return False

    def add(self, number: int, inputs: str, shard: ScoredShard) -> None:
        """Write a shard and its line."""
        record = ShardRecord(
            number,
            self._file(number),
            inputs,
            sha256(shard.content).hexdigest(),
            shard.rows,
            *astuple(shard.counts),
        )
        with whole_file(self.folder / record.file, _PART) as temporary:
            temporary.write_bytes(shard.content)
        self.records[number] = record
        with storage_errors(self.folder), (self.folder / _SHARDS).open("ab") as file:
            # A line that a killed process left unfinished ends here, and is passed over.
            file.write(b"\n" + _line(record))
            file.flush()
            os.fsync(file.fileno())

    def finish(self, count: int) -> FileCounts:
        """The folder is complete: remove what is left of other shards, write the manifest last."""
        records = [self.records[number] for number in range(count)]
        files = {record.file for record in records}
        for file in self.folder.iterdir():
            if _WRITTEN.fullmatch(file.name) and file.name not in files:
                file.unlink()
        content = b"".join(map(_line, records))
        total = FileCounts(
            sum(record.scored for record in records),
            sum(record.flagged for record in records),
            sum(record.unreadable for record in records),
        )
        manifest = {
            "kind": _KIND,
            "form": _FORM,
            "shards": count,
            "shards_sha256": sha256(content).hexdigest(),
            "rows": sum(record.rows for record in records),
            **asdict(total),
        }
        for name, data in ((_SHARDS, content), (_MANIFEST, _json(manifest))):
            with whole_file(self.folder / name, _OWN) as temporary:
                temporary.write_bytes(data)
        return total

    def _file(self, number: int) -> str:
        return f"part-{number:05}.{self.suffix}"


@contextmanager
def open_score_folder(folder: Path, job: JsonObject, suffix: str) -> Iterator[ScoreFolder]:
    """A new folder for these scores, or the one where they were begun; for one process at a time.

    Args:
        folder: the folder.
        job: what is scored and how; the folder keeps it.
        suffix: of the files of rows.

    Raises:
        UsageError: it holds something else, or scores of another job.
    """
    content = _json({"kind": _KIND, "form": _FORM, **job})
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; --workers writes a folder. Choose another --out.")
    _check_scores_or_empty(folder)
    with alone_in(folder):
        _check_scores_or_empty(folder)  # another process may have written before we had the lock
        if not (folder / _JOB).exists():
            with whole_file(folder / _JOB) as temporary:
                temporary.write_bytes(content)
        elif (folder / _JOB).read_bytes() != content:
            raise UsageError(
                f"{folder} holds scores of another job: {_difference(folder / _JOB, content)}. "
                "Choose another --out, or delete the folder."
            )
        yield ScoreFolder(folder, suffix)


def _check_scores_or_empty(folder: Path) -> None:
    """Raise a UsageError if other files are in the folder than those of a job."""
    if not folder.exists() or (folder / _JOB).exists():
        return
    # A job that was killed as it began leaves its lock and the file that would have been _JOB.
    ours = re.compile(rf"\.lock|\.{re.escape(_JOB)}\.\d+\.[0-9a-f]+\.tmp")
    others = sorted(p.name for p in folder.iterdir() if not ours.fullmatch(p.name))
    if others:
        raise UsageError(
            f"{folder} holds {', '.join(others[:3])} and no scores of goen. Choose another --out."
        )


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
        with (folder / record.file).open("rb") as file:
            return file_digest(file, "sha256").hexdigest() == record.sha256
    except OSError:
        return False


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


# The folder is goen's: it holds _job.json.
_OWN = Own("a list of shards that goen wrote", Path.is_file)
_PART = Own("a shard of scores that goen wrote", Path.is_file)
