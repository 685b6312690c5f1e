import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.cli.main import main
from goen.data import names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "textures.npz", images=pixels, labels=np.arange(6) % 2, names=["a", "b"])
    return tmp_path


def test_list_names_every_set_and_where_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "list", "--json", "--data-dir", str(folder)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["name"] for row in rows} == set(names())
    by_name = {row["name"]: row for row in rows}
    assert by_name["textures"]["here"] == str(folder / "textures.npz")
    assert by_name["cifar100"]["here"] is None
    assert "goen data get svhn (official, 64 MB)" in by_name["svhn"]["obtainable"]
    assert by_name["svhn"]["licence"].startswith("non-commercial")


def test_list_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    text = capsys.readouterr().out
    for name in names():
        assert name in text


def test_check_reads_what_is_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "--data-dir", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "textures/all" in text
    assert "digits" in text
    assert "svhn" not in text


def test_check_finds_a_changed_pixel(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "textures", "--data-dir", str(folder)]) == 0
    (prepared,) = (folder / "cache" / "sets").iterdir()
    content = bytearray((prepared / "images.npy").read_bytes())
    content[-1] ^= 1
    (prepared / "images.npy").write_bytes(content)
    assert main(["data", "check", "textures", "--data-dir", str(folder)]) == 2
    assert "pixels changed" in capsys.readouterr().err


def test_check_of_a_set_that_is_not_here_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "svhn"]) == 2
    assert "svhn/test is not here" in capsys.readouterr().err


def test_a_folder_that_is_not_here_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "my photo"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Unknown set 'my photo'." in said
    assert f"Nor is there a folder or a protocol file 'my photo' in {Path.cwd()}." in said


def test_show_writes_a_picture_and_prints_its_path(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "sheets"
    assert (
        main(["data", "show", "digits", "textures", "--data-dir", str(folder), "--out", str(out)])
        == 0
    )
    paths = [Path(line) for line in capsys.readouterr().out.split()]
    assert [p.name for p in paths] == ["digits.png", "textures-all.png"]
    for path in paths:
        with Image.open(path) as picture:
            assert picture.width > 200


def test_show_replaces_a_file_with_overwrite_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["data", "show", "digits", "--out", str(tmp_path)]
    (tmp_path / "digits.png").write_text("a photograph")
    assert main(arguments) == 2
    assert "digits.png exists. Replace it with" in capsys.readouterr().err
    assert (tmp_path / "digits.png").read_text() == "a photograph"
    assert main([*arguments, "--overwrite"]) == 0
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("corruption", ["fog", "all"])
def test_show_corruptions(corruption: str, tmp_path: Path) -> None:
    arguments = ["data", "show", "photographs", "--corruption", corruption, "--out", str(tmp_path)]
    assert main(arguments) == 0
    with Image.open(tmp_path / f"photographs-{corruption}.png") as picture:
        assert picture.height == 36 + 68 * (15 if corruption == "all" else 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "Name the datasets to show"),
        (["get"], "Name the datasets to get"),
        (["show", "digit"], "Did you mean 'digits'?"),
        (["show", "digits", "--corruption", "frog"], "Did you mean 'fog'?"),
        (["list", "--data-dir", "nowhere"], "--data-dir names nowhere, which is not a folder"),
        (["show", "svhn"], "goen data get svhn"),
    ],
)
def test_mistakes_get_a_sentence_and_code_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["data", "show", "digits", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "Cannot write" in capsys.readouterr().err
