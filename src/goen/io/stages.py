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
from goen.files import (
    LOCK,
    check_free,
    make_folder,
    remove_own,
    storage_errors,
    whole_file,
    whole_folder,
)
from goen.runs.manifest import JsonObject
from goen.runs.provenance import hardware, versions
from goen.runs.recognise import RUN_FILES, SUMMARY

_log = getLogger(__name__)


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
        make_folder(work)
        with storage_errors(work), _turn(work.with_name(f".{work.name}.lock"), title):
            if done.is_dir():
                _check_stage(done)
                if not about:  # of many alike, only what is being done is worth a line
                    _log.info(f"{title}: done before ({done})")
            else:
                _log.info(f"{title}: working")
                with whole_folder(done) as temporary:
                    (temporary / "inputs.json").write_text(text + "\n", encoding="utf-8")
                    make(temporary, work)
            _clear(work)  # left as well if the process was killed just after the stage appeared
        return done


def _check_stage(folder: Path) -> None:
    if not (folder / "inputs.json").is_file():
        raise UsageError(
            f"{folder} exists and is not a stage that goen made. Choose another folder for stages."
        )


@contextmanager
def _turn(lock: Path, title: str) -> Iterator[None]:
    """Hold the lock; when another process has it, log that and wait."""
    check_free(lock, LOCK)
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        _log.info(f"{title}: another process is computing it; waiting")
        held.acquire()
    try:
        yield
    finally:
        held.release()


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def check_run_folder(folder: Path) -> None:
    """Raise a UsageError if a study in this folder would lose anything but an earlier study.

    Other files may be in the folder; they stay.
    """
    if folder.exists() and not folder.is_dir():
        check_free(folder)
    check_free(folder / ".lock", LOCK)
    for name, ours in RUN_FILES.items():
        check_free(folder / name, ours)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a run's folder for one process.

    Raises:
        UsageError: another process is at work in it, or files that a study would replace and that
            goen did not write are in it.
    """
    check_run_folder(folder)
    make_folder(folder)
    try:
        # One lock for each folder: who holds it may ask again, for the report of the run.
        with storage_errors(folder), FileLock(folder / ".lock", timeout=0, is_singleton=True):
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
    check_run_folder(out)  # all of them, before the first is removed
    for name, ours in RUN_FILES.items():
        remove_own(out / name, ours)
    yield
    with whole_file(out / "run.json", SUMMARY) as temporary:
        whole = {**summary, "versions": versions(), "hardware": hardware()}
        text = json.dumps(whole, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")
