import errno
import os
import zipfile
from pathlib import Path

import pytest

from goen.errors import DataCorrupt, StorageError
from goen.io.storage_errors import check_writable, read_errors, storage_errors


def test_whether_a_place_can_be_written_to_is_seen_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)
    check_writable(tmp_path / "a.onnx")
    check_writable(tmp_path / "new" / "deep" / "a.onnx")
    check_writable(locked)  # itself replaced: the folder that holds it counts
    for path in (locked / "a.onnx", locked / "new" / "a.onnx"):
        with pytest.raises(StorageError, match=r"Cannot write .*a\.onnx: permission denied"):
            check_writable(path)
    with pytest.raises(StorageError, match="A file stands where a folder is needed"):
        check_writable(tmp_path / "file" / "a.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {"locked", "file"}  # nothing was made


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
        OSError(errno.EMFILE, "too many open files", "/elsewhere/a"),
        PermissionError(errno.EACCES, "denied", "/elsewhere/train.npy"),
        IsADirectoryError(errno.EISDIR, "a folder"),
        FileNotFoundError(errno.ENOENT, "none", "a"),
    ],
)
def test_errors_of_reading_and_of_the_network_are_not_errors_of_writing(
    error: OSError, tmp_path: Path
) -> None:
    with pytest.raises(type(error)) as caught, storage_errors(tmp_path / "stage"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EROFS, "read-only", "/elsewhere"),
        PermissionError(errno.EACCES, "denied", "stage/a"),
        PermissionError(errno.EACCES, "denied", b"stage"),
    ],
)
def test_errors_of_writing_name_what_could_not_be_written(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(StorageError, match=r"Cannot write .*stage:"),
        storage_errors(Path("stage")),
    ):
        raise error


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (FileNotFoundError(), "a.npz does not exist"),
        (MemoryError(), "a.npz needs more memory than there is"),
        (OSError(13, "Permission denied"), "a.npz cannot be opened: Permission denied"),
        (zipfile.BadZipFile("magic"), "a.npz is broken or cut short: magic"),
        (IndexError(), "a.npz is broken or cut short: IndexError"),
        (DataCorrupt("as it was"), "^as it was$"),
    ],
)
def test_every_error_names_the_file(raised: Exception, message: str) -> None:
    with pytest.raises(DataCorrupt, match=message), read_errors("a.npz"):
        raise raised
