import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from goen.errors import StorageError, UsageError
from goen.io.files import (
    MARKER,
    check_free,
    check_lock,
    claim_folder,
    folder_kind,
    make_folder,
    whole_file,
    whole_folder,
)

KIND = "gate"


def test_a_failing_block_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(RuntimeError), whole_file(target, overwrite=True) as temporary:
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
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "folder", KIND) as temporary:
        (temporary / "part").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_of_two_processes_the_first_stays_and_the_second_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="f exists"),
        whole_folder(tmp_path / "f", KIND) as mine,
    ):
        (mine / "who").write_text("mine")
        with whole_folder(tmp_path / "f", KIND) as theirs:
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
        with whole_folder(tmp_path / "f", KIND, overwrite=True) as temporary:
            (temporary / content).touch()
    assert {p.name for p in (tmp_path / "f").iterdir()} == {MARKER, "new"}
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_failed_replacement_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with whole_folder(tmp_path / "f", KIND) as temporary:
        (temporary / "old").touch()
    rename = Path.rename

    def fail_for_new(self: Path, target: Path) -> Path:
        if target == tmp_path / "f" and not self.name.endswith(".old.tmp"):
            raise PermissionError(13, "no", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with (
        pytest.raises(StorageError),
        whole_folder(tmp_path / "f", KIND, overwrite=True) as temporary,
    ):
        (temporary / "new").touch()
    assert {p.name for p in (tmp_path / "f").iterdir()} == {MARKER, "old"}
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_name_with_stars_is_a_name(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a**[b].csv") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "a**[b].csv").read_text() == "x"


# -- the rule ------------------------------------------------------------------------------------


def test_a_file_that_exists_is_replaced_with_overwrite_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    with (
        pytest.raises(UsageError, match=r"f exists\. Replace it with overwrite=True \(--over"),
        whole_file(tmp_path / "f"),
    ):
        pytest.fail("the block has begun")
    assert (tmp_path / "f").read_text() == "old"
    with whole_file(tmp_path / "f", overwrite=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "f").read_text() == "new"


def test_a_marked_folder_is_replaced_with_overwrite_alone(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "f", KIND):
        pass
    assert folder_kind(tmp_path / "f") == KIND
    with (
        pytest.raises(UsageError, match=r"f exists\. Replace it with overwrite=True"),
        whole_folder(tmp_path / "f", KIND),
    ):
        pytest.fail("the block has begun")
    assert check_free(tmp_path / "f", KIND, overwrite=True) == tmp_path / "f"


def a_file(path: Path) -> None:
    path.write_text("years of work")


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


def an_empty_folder(path: Path) -> None:
    path.mkdir()


def another_kind(path: Path) -> None:
    claim_folder(path, "run")


def a_marker_that_is_a_link(path: Path) -> None:
    path.mkdir()
    path.with_name("marker").write_text(f"{KIND}\n")
    (path / MARKER).symlink_to(path.with_name("marker"))


def a_marker_that_is_a_folder(path: Path) -> None:
    (path / MARKER).mkdir(parents=True)


def a_link_to_a_file(path: Path) -> None:
    path.with_name("target").write_text("years of work")
    path.symlink_to("target")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def below(folder: Path) -> dict[str, str | None]:
    """Every file below a folder with its content."""
    found = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else None for p in found}


FOLDERS = (a_folder, another_kind, a_marker_that_is_a_link, a_marker_that_is_a_folder)
LINKS = (a_link_to_a_file, a_link_to_nothing)


@pytest.mark.parametrize("thing", [*FOLDERS, *LINKS, an_empty_folder, a_pipe])
def test_a_file_replaces_no_folder_link_or_device(
    thing: Callable[[Path], None], tmp_path: Path
) -> None:
    thing(tmp_path / "f")
    before = below(tmp_path)
    for overwrite in (False, True):
        with (
            pytest.raises(UsageError, match=r"goen leaves it as it is|writes through no link"),
            whole_file(tmp_path / "f", overwrite=overwrite),
        ):
            pytest.fail("the block has begun")
    assert below(tmp_path) == before


@pytest.mark.parametrize("thing", [*FOLDERS, *LINKS, a_file, a_pipe])
def test_a_folder_without_the_marker_is_never_replaced(
    thing: Callable[[Path], None], tmp_path: Path
) -> None:
    thing(tmp_path / "f")
    before = below(tmp_path)
    refused = pytest.raises(UsageError, match=r"goen leaves it as it is|writes through no link")
    for overwrite in (False, True):
        with refused, whole_folder(tmp_path / "f", KIND, overwrite=overwrite):
            pytest.fail("the block has begun")
    with refused:
        claim_folder(tmp_path / "f", KIND)
    assert below(tmp_path) == before


def test_the_message_shows_what_is_there(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"is a folder that holds a, b, c, \.\.\., not a gate "):
        claim_folder(tmp_path, KIND)
    claim_folder(tmp_path / "run", "run")
    known = (
        r"is a run folder that goen made, not a gate folder that goen made \(with the file \.goen"
    )
    with pytest.raises(UsageError, match=known):
        check_free(tmp_path / "run", KIND, overwrite=True)
    with pytest.raises(UsageError, match="a exists and is a file of 0 bytes"):
        claim_folder(tmp_path / "a", KIND)


def test_an_empty_folder_is_free_for_a_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with whole_folder(tmp_path / "a", KIND):
        pass
    claim_folder(tmp_path / "b", KIND)
    assert [folder_kind(tmp_path / name) for name in ("a", "b")] == [KIND, KIND]


def test_a_claimed_folder_is_claimed_again_and_keeps_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    assert claim_folder(folder, "run") == folder
    (folder / "results").write_text("1")
    (folder / MARKER).write_text("")  # as a process leaves it that is killed meanwhile
    claim_folder(folder, "run")
    assert below(folder) == {MARKER: "run\n", "results": "1"}


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "real", KIND):
        pass
    (tmp_path / "link").symlink_to("real")
    with whole_folder(tmp_path / "link", KIND, overwrite=True) as temporary:
        (temporary / "new").touch()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "new").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_lock_is_an_empty_file(tmp_path: Path) -> None:
    assert check_lock(tmp_path / "lock") == tmp_path / "lock"
    (tmp_path / "lock").touch()
    check_lock(tmp_path / "lock")
    (tmp_path / "link").symlink_to("lock")
    (tmp_path / "full").write_text("years of work")
    for name in ("link", "full"):
        with pytest.raises(UsageError, match=f"{name} should be a lock of goen, an empty file"):
            check_lock(tmp_path / name)


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_kept(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:  # as on a FAT file system
        monkeypatch.setattr(os, "link", unsupported)
    with (
        pytest.raises(UsageError, match="f exists"),
        whole_file(tmp_path / "f") as temporary,
    ):
        temporary.write_text("mine")
        (tmp_path / "f").write_text("their")
    assert below(tmp_path) == {"f": "their"}


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
    with whole_folder(tmp_path / "f", KIND):
        pass
    with (
        pytest.raises(UsageError, match=r"f exists and is a folder that holds thesis\.txt"),
        whole_folder(tmp_path / "f", KIND, overwrite=True),
    ):
        (tmp_path / "f" / MARKER).rename(tmp_path / "f" / "thesis.txt")
    assert below(tmp_path) == {"f": None, "f/thesis.txt": "gate\n"}


# -- temporary files, permissions, errors --------------------------------------------------------


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
    for whole in (whole_file(Path(where)), whole_folder(Path(where), KIND)):
        with (
            pytest.raises(StorageError, match=r"Cannot write /proc/.*: no such file.* choose an"),
            whole,
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
            with whole_folder(tmp_path / "g", KIND) as temporary:
                (temporary / "file").touch(mode=0o600)
    finally:
        os.umask(mask)
    for name in ("f", "g/file"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640
