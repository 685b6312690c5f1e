import errno
import os
import time
from pathlib import Path

import pytest

from goen.errors import StorageError, UsageError
from goen.files import (
    Own,
    check_writable,
    make_folder,
    own_files,
    recorded_names,
    whole_file,
    whole_folder,
)

ANY = Own("anything", lambda path: True)


def test_a_failing_block_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(RuntimeError), whole_file(target, ANY) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_takes_its_place_at_the_end(tmp_path: Path) -> None:
    with whole_file(tmp_path / "deep" / "file") as temporary:
        temporary.write_text("new")
        assert not (tmp_path / "deep" / "file").exists()
    assert (tmp_path / "deep" / "file").read_text() == "new"


def test_a_failing_block_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "folder") as temporary:
        (temporary / "part").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_equal_folders_stays(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "f") as mine:
        (mine / "who").write_text("mine")
        with whole_folder(tmp_path / "f") as theirs:
            (theirs / "who").write_text("theirs")
    assert (tmp_path / "f" / "who").read_text() == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_what_a_killed_process_left_is_cleared_after_a_day(tmp_path: Path) -> None:
    fresh, stale = tmp_path / ".f.1.a.tmp", tmp_path / ".f.2.b.tmp"
    fresh.touch()
    stale.mkdir()
    os.utime(stale, (time.time() - 2 * 86400,) * 2)
    with whole_file(tmp_path / "f") as temporary:
        temporary.touch()
    assert fresh.exists()
    assert not stale.exists()


def test_a_file_in_the_way_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(StorageError, match=r"Cannot write .*taken.*choose another folder"):
        make_folder(tmp_path / "taken" / "below")


def test_replacing_takes_the_old_folder_away(tmp_path: Path) -> None:
    for content in ("old", "new"):
        with whole_folder(tmp_path / "f", ANY) as temporary:
            (temporary / content).touch()
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["new"]
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_failed_replacement_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with whole_folder(tmp_path / "f", ANY) as temporary:
        (temporary / "old").touch()
    rename = Path.rename

    def fail_for_new(self: Path, target: Path) -> Path:
        if target == tmp_path / "f" and not self.name.endswith(".old.tmp"):
            raise PermissionError(13, "no", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with (
        pytest.raises(StorageError),
        whole_folder(tmp_path / "f", ANY) as temporary,
    ):
        (temporary / "new").touch()
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["old"]


def test_a_name_with_stars_is_a_name(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a**[b].csv") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "a**[b].csv").read_text() == "x"


def test_a_folder_where_a_file_should_go_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken.csv").mkdir()
    for ours in (None, ANY):
        with (
            pytest.raises(UsageError, match=r"taken\.csv exists and is an empty folder"),
            whole_file(tmp_path / "taken.csv", ours) as temporary,
        ):
            temporary.write_text("x")


def test_without_a_kind_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with (
        pytest.raises(UsageError, match=r"f exists and is a file of 3 bytes\. goen replaces only"),
        whole_file(tmp_path / "f"),
    ):
        pytest.fail("the block has begun")
    for ours in (None, ANY):
        with (
            pytest.raises(UsageError, match="a file of 3 bytes"),
            whole_folder(tmp_path / "f", ours),
        ):
            pytest.fail("the block has begun")
    assert (tmp_path / "f").read_text() == "old"


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("ours", [None, Own("a list", lambda path: path.read_text() == "list")])
def test_a_file_that_appears_meanwhile_is_kept(
    tmp_path: Path, ours: Own | None, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:  # as on a FAT file system
        monkeypatch.setattr(os, "link", unsupported)
    with (
        pytest.raises(UsageError, match="f exists and is a file of 5 bytes"),
        whole_file(tmp_path / "f", ours) as temporary,
    ):
        temporary.write_text("list")
        (tmp_path / "f").write_text("their")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "their"


def unsupported(*_: object) -> None:
    raise OSError(95, "Operation not supported")


def test_without_hard_links_a_file_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", unsupported)
    with whole_file(tmp_path / "f") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "f").read_text() == "new"


def test_a_folder_that_was_exchanged_meanwhile_is_kept(tmp_path: Path) -> None:
    ours = Own("a marked folder", lambda path: (path / "mark").exists())
    with whole_folder(tmp_path / "f", ours) as temporary:
        (temporary / "mark").touch()
    with (
        pytest.raises(UsageError, match=r"f exists and is a folder that holds thesis\.txt"),
        whole_folder(tmp_path / "f", ours) as temporary,
    ):
        (temporary / "mark").touch()
        (tmp_path / "f" / "mark").unlink()
        (tmp_path / "f" / "thesis.txt").write_text("years of work")
    assert (tmp_path / "f" / "thesis.txt").read_text() == "years of work"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_test_that_raises_recognises_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> bool:
        raise RuntimeError

    assert not Own("anything", fail).recognises(tmp_path)


def test_somebodys_own_temporary_file_is_not_cleared_away(tmp_path: Path) -> None:
    names = (".f.backup.tmp", ".f.1.tmp", ".f.1.xyz.tmp", ".f.1.a.old.tmp")
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - 2 * 86400,) * 2)
    with whole_file(tmp_path / "f") as temporary:
        temporary.touch()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names, "f"])


def test_files_get_the_rights_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with whole_file(tmp_path / "f") as temporary:
        temporary.touch(mode=0o600)
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("where", ["/proc/x", "/proc/self/x/y"])
def test_a_place_where_no_file_can_be_made_is_one_clear_sentence(where: str) -> None:
    for whole in (whole_file, whole_folder):
        with (
            pytest.raises(StorageError, match=r"Cannot write /proc/.*: no such file.* choose an"),
            whole(Path(where)),
        ):
            pytest.fail("the block has begun")


def test_the_umask_is_that_of_the_moment_and_is_never_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = os.umask(0o027)  # after the import of goen
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda _: pytest.fail("the umask was set"))
            with whole_file(tmp_path / "f") as temporary:
                temporary.touch(mode=0o600)
            with whole_folder(tmp_path / "g") as temporary:
                (temporary / "file").touch(mode=0o600)
    finally:
        os.umask(mask)
    for name in ("f", "g/file"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640


def test_a_record_leads_to_no_file_outside_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    with own_files(folder, {"a.md"}):
        pass
    (tmp_path / "precious").write_text("kept")
    (folder / ".goen-wrote").write_text(f"a.md\n\n../precious\n{tmp_path / 'precious'}\nb/c")
    assert recorded_names(folder) == {"a.md"}
    with own_files(folder, {"b.md"}):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize("link", [".goen-wrote", "classes.csv"])
def test_links_in_a_strangers_folder_lead_to_no_file_of_the_users(
    link: str, tmp_path: Path
) -> None:
    (tmp_path / ".bashrc").write_text("kept")
    folder = tmp_path / "run" / "tables"
    folder.mkdir(parents=True)
    (folder / ".goen-wrote").write_text(".bashrc\nclasses.csv\n")
    (folder / link).unlink(missing_ok=True)
    (folder / link).symlink_to(tmp_path / ".bashrc")
    with (
        pytest.raises(UsageError, match=rf"{link} is a link, and goen writes through none"),
        own_files(folder, {"classes.csv"}) as ours,
        whole_file(folder / "classes.csv", ours) as temporary,
    ):
        temporary.write_text("theirs")
    assert (tmp_path / ".bashrc").read_text() == "kept"


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
    with pytest.raises(type(error)) as caught, whole_folder(tmp_path / "stage"):
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
    with pytest.raises(StorageError, match=r"Cannot write .*stage: "), whole_folder(Path("stage")):
        raise error
