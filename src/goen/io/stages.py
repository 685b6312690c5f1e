"""Stages of a study, each computed once, and the folder that one study at a time works in."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

from filelock import FileLock, Timeout

from goen.errors import UsageError
from goen.io.files import check_lock, claim_folder, make_folder, whole_file, whole_folder
from goen.io.manifest import JsonObject
from goen.io.provenance import hardware, versions
from goen.io.storage_errors import storage_errors

_log = getLogger(__name__)

RUN = "run"
"""The kind of the folder of any study."""
LOCK = ".lock"
"""In every folder that one process at a time works in."""
_RUN_FILES = (
    "run.json",
    "report.html",
    "results.jsonl",
    "scores.safetensors",
    "map.safetensors",
    "mistakes.safetensors",
    "training.jsonl",
    "head.jsonl",
)


@dataclass(frozen=True)
class Stages:
    """A folder of finished pieces of work, each named after the content of what went into it.

    A stage that is there is never done again, whichever study asks for it. One that was interrupted
    resumes from what it left in its ``work`` folder. Two studies that need the same stage at
    the same time do it once: the second waits.
    """

    folder: Path

    @classmethod
    def beside(cls, out: Path) -> "Stages":
        """The stages that all studies share whose folders lie beside this one."""
        return cls(out.parent / "stages")

    def run(
        self,
        name: str,
        inputs: JsonObject,
        make: Callable[[Path, Path], None],
        *,
        about: str = "",
    ) -> Path:
        """The folder of the finished stage; made by ``make(result, work)`` if it is not there.

        Args:
            name: of the stage, for people.
            inputs: all that the result depends on, as JSON: configurations and fingerprints, and
                a revision of the code that makes it where that has changed its results.
            make: fills the first folder, which appears when it returns. It may keep what it needs
                to resume in the second, which is removed afterwards.
            about: which one, where there are many alike, such as the name of a set.
        """
        text = json.dumps(inputs, sort_keys=True, ensure_ascii=False)
        key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        done = self.folder / f"{name}-{key}"
        work = self.folder / "work" / f"{name}-{key}"
        title = f"{name} of {about}" if about else name
        claim_folder(self.folder, "stages")
        make_folder(work)
        with storage_errors(work), _turn(work.with_name(f".{work.name}.lock"), title):
            if done.is_dir():
                if not about:  # of many alike, only what is being done is worth a line
                    _log.info(f"{title}: done before ({done})")
            else:
                _log.info(f"{title}: working")
                with whole_folder(done, "stage") as temporary:
                    (temporary / "inputs.json").write_text(text + "\n", encoding="utf-8")
                    make(temporary, work)
            # Left as well if the process was killed just after the stage appeared.
            shutil.rmtree(work, ignore_errors=True)
        return done


@contextmanager
def _turn(lock: Path, title: str) -> Iterator[None]:
    """Hold the lock; when another process has it, log that and wait."""
    held = FileLock(check_lock(lock))
    try:
        turn = held.acquire(timeout=0)
    except Timeout:
        _log.info(f"{title}: another process is computing it; waiting")
        turn = held.acquire()
    with turn:
        yield


@contextmanager
def alone_in(folder: Path, kind: str = RUN) -> Iterator[None]:
    """Hold a folder of this kind for one process; it is made, or continued by its marker.

    Raises:
        UsageError: another process is at work in it, or it is not a folder of this kind.
    """
    lock = check_lock(claim_folder(folder, kind) / LOCK)
    try:
        # One lock for each folder: who holds it may ask again, for the report of the run.
        with storage_errors(folder), FileLock(lock, timeout=0, is_singleton=True):
            yield
    except Timeout as error:
        raise UsageError(
            f"Another goen is at work in {folder}. Wait for it, or choose another with --out."
        ) from error


@contextmanager
def summarised(out: Path, summary: JsonObject) -> Iterator[None]:
    """Write a study's results in this block; ``run.json`` appears when it ends well.

    To the summary it adds the versions and the machine that the results were made with.

    Only now does an earlier run in the folder lose its files, so that a study that fails before it
    has results leaves the earlier one whole, and nothing of two is ever mixed. A gate stays until
    there is another.
    """
    for name in _RUN_FILES:
        (out / name).unlink(missing_ok=True)
    yield
    with whole_file(out / "run.json") as temporary:
        whole = {**summary, "versions": versions(), "hardware": hardware()}
        text = json.dumps(whole, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
