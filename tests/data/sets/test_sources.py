"""Every usual form of a set leads to the same images; every broken one to one clear sentence."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.cli.main import main
from goen.data import load_set
from goen.errors import DataMissing, UsageError
from tests.data.cifar10_files import lay_out
from tests.data.local_sets import PER_BATCH


@pytest.mark.usefixtures("cifar10")
def test_the_folder_itself_may_be_named(tmp_path: Path) -> None:
    lay_out("binary folder", tmp_path)
    images = load_set("cifar10", "test", data_dir=tmp_path / "cifar-10-batches-bin")
    assert len(images) == PER_BATCH


def test_a_changed_image_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "textures" / "a").mkdir(parents=True)
    file = tmp_path / "textures" / "a" / "1.png"
    Image.new("RGB", (32, 32), "red").save(file)
    before = load_set("textures", data_dir=str(tmp_path)).fingerprint
    Image.new("RGB", (32, 32), "navy").save(file)
    assert load_set("textures", data_dir=tmp_path).fingerprint != before


@pytest.mark.usefixtures("cifar10")
def test_goen_data_is_used_when_no_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out("binary folder", tmp_path)
    monkeypatch.setenv("GOEN_DATA", str(tmp_path))
    assert len(load_set("cifar10", "test")) == PER_BATCH


@pytest.mark.usefixtures("cifar10")
def test_a_set_that_was_fetched_before_and_is_not_in_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GOEN_CACHE", str(tmp_path / "cache"))
    lay_out("binary folder", tmp_path / "cache" / "downloads")
    (tmp_path / "empty").mkdir()
    with caplog.at_level("INFO", "goen"):
        assert len(load_set("cifar10", "test")) == PER_BATCH
        assert not caplog.messages  # no folder was named
        assert len(load_set("cifar10", "test", data_dir=tmp_path / "empty")) == PER_BATCH
    [message] = caplog.messages
    assert message.startswith(f"cifar10/test is not in {tmp_path / 'empty'}; {tmp_path / 'cache'}")
    caplog.clear()
    lay_out("binary folder", tmp_path / "full")
    with caplog.at_level("INFO", "goen"):
        load_set("cifar10", "test", data_dir=tmp_path / "full")
    assert not caplog.messages


def test_the_official_layout_of_textures_is_found_and_empty_folders_elsewhere_hide_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dtd/images/banded", "dtd/images/dotted", "dtd/imdb", "dtd/labels", "MNIST/raw"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("banded", "dotted"):
        Image.new("RGB", (8, 8)).save(tmp_path / "dtd" / "images" / name / "1.png")
    assert load_set("textures", data_dir=tmp_path).classes == ("banded", "dotted")
    (tmp_path / "dtd" / "images" / "dotted" / "1.png").unlink()
    assert main(["data", "list", "--json", "--data-dir", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (textures,) = (row for row in rows if row["name"] == "textures")
    assert "holds no images" in textures["obtainable"]
    assert len(rows) > 8


@pytest.mark.usefixtures("cifar10")
def test_a_missing_set_says_what_was_looked_at_and_what_to_do(tmp_path: Path) -> None:
    lay_out("binary folder", tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin").unlink()
    with pytest.raises(DataMissing, match=r"lacks data_batch_4\.bin.*goen data get cifar10"):
        load_set("cifar10", "train", data_dir=tmp_path)
    with pytest.raises(DataMissing, match=r"places\.npz, places/<class>/\*\.png.*--data-dir"):
        load_set("places", data_dir=tmp_path, download=True)


def test_the_only_npz_of_a_folder_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "textures").mkdir()
    content = {"images": np.zeros((2, 3, 8, 8), np.uint8), "labels": np.array([0, 1])}
    np.savez(tmp_path / "textures" / "a.npz", **content, names=np.array(["dots", "stripes"]))
    assert len(load_set("textures", data_dir=tmp_path)) == 2
    (tmp_path / "textures" / "b.npz").touch()  # which of them is meant?
    with pytest.raises(DataMissing):
        load_set("textures", data_dir=tmp_path)


def test_names_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="digits has no splits; got tset"):
        load_set("digits", "tset")
    with pytest.raises(UsageError, match="Did you mean 'cifar10'"):
        load_set("cifar11")
    with pytest.raises(UsageError, match="splits train, test; got tset"):
        load_set("cifar10/tset")
    with pytest.raises(UsageError, match=r"train, test; got None\. .*load_set\('cifar10', "):
        load_set("cifar10")
    with pytest.raises(UsageError, match="--data-dir names nowhere"):
        load_set("svhn", data_dir=Path("nowhere"))


def test_two_folders_that_look_alike_are_not_confused(tmp_path: Path) -> None:
    for name, colour in (("one", "red"), ("two", "lime")):
        (tmp_path / name / "textures" / "a").mkdir(parents=True)
        file = tmp_path / name / "textures" / "a" / "x.bmp"
        Image.new("RGB", (32, 32), colour).save(file)
        os.utime(file, (0, 0))
    one, two = (load_set("textures", data_dir=tmp_path / name).read() for name in ("one", "two"))
    assert one[0, :, 0, 0].tolist() == [255, 0, 0]
    assert two[0, :, 0, 0].tolist() == [0, 255, 0]
