"""``--groups``: folders, and CSV files."""

from pathlib import Path

import pytest

from goen.cli.options.groups import read_groups
from goen.errors import DataCorrupt, UsageError

HELD_OUT = Path("held")
FILES = [HELD_OUT / name for name in ("cat/v1/0.png", "cat/v1/1.png", "dog/v2/0.png")]


def csv(folder: Path, text: str) -> str:
    (folder / "groups.csv").write_text(text, encoding="utf-8")
    return str(folder / "groups.csv")


def test_the_folder_of_an_image_is_its_group() -> None:
    assert read_groups("parent", HELD_OUT, FILES) == ["cat/v1", "cat/v1", "dog/v2"]
    assert read_groups(None, HELD_OUT, FILES) is None
    with pytest.raises(UsageError, match="these are rows of a file: give a CSV file"):
        read_groups("parent", HELD_OUT, [])


def test_a_table_has_the_group_of_each_path_in_any_order(tmp_path: Path) -> None:
    more = "path,group\ndog/v2/0.png,b\ncat/v1/1.png,a\ncat/v1/0.png,a\ncat/v9/0.png,z\n"
    assert read_groups(csv(tmp_path, "\ufeff" + more), HELD_OUT, FILES) == ["a", "a", "b"]
    rows = csv(tmp_path, "group\nx\ny\nx\n")
    assert read_groups(rows, HELD_OUT, []) == ["x", "y", "x"]
    for text in ("group\nx\ny\nx\n", "group,path\na\nb,cat/v1/0.png\n"):  # a row that is too short
        with pytest.raises(UsageError, match="needs a column path, with a value in each row"):
            read_groups(csv(tmp_path, text), HELD_OUT, FILES)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("path,group\ncat/v1/0.png,a\n", "no group for 2 of 3 .* such as cat/v1/1.png"),
        ("path,group\na,b\na,c\n", "should name each path once, got 1 paths in 2 rows"),
        ("path\na\n", "needs a column group"),
        ("path,group\na,\n", "needs a column group, with a value in each row"),
        ("path,group\na\n", "needs a column group, with a value in each row"),
        ("", "needs a column group"),
    ],
)
def test_a_table_that_does_not_fit_is_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, DataCorrupt), match=sentence):
        read_groups(csv(tmp_path, text), HELD_OUT, FILES)


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        read_groups(str(tmp_path / "none.csv"), HELD_OUT, FILES)
    (tmp_path / "bytes.csv").write_bytes(b"path,group\n\xff,a\n")
    with pytest.raises(DataCorrupt, match="is no CSV file"):
        read_groups(str(tmp_path / "bytes.csv"), HELD_OUT, FILES)
