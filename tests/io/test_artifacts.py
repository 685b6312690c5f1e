import json
from pathlib import Path

import pytest
import torch

from goen.errors import ArtifactError, UsageError
from goen.io import artifacts
from goen.io.tensors import Tensors, read_tensors

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1], dtype=torch.int64)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    artifacts.save_artifact(tmp_path / "thing", "thing", TENSORS, {"colour": "grün"})
    return tmp_path / "thing"


def test_what_is_saved_comes_back(saved: Path) -> None:
    tensors, manifest = artifacts.load_artifact(saved, "thing")
    assert torch.equal(tensors["a"], TENSORS["a"])
    assert torch.equal(tensors["b"], TENSORS["b"])
    assert manifest.text("colour") == "grün"
    assert manifest.part("versions").text("torch") == torch.__version__


def test_a_manifest_is_written_if_it_is_small_enough_to_be_loaded(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (saved / "manifest.json").stat().st_size
    monkeypatch.setattr(artifacts, "JSON_BYTES", size)
    artifacts.save_artifact(saved, "thing", TENSORS, {"colour": "blau "}, overwrite=True)
    with pytest.raises(UsageError, match=f"would have {size + 1:,} bytes; at most {size:,} are"):
        artifacts.save_artifact(saved, "thing", TENSORS, {"colour": "blau! "}, overwrite=True)
    assert artifacts.load_artifact(saved, "thing")[1].text("colour") == "blau "


def test_saving_again_replaces_the_whole(saved: Path) -> None:
    artifacts.save_artifact(saved, "thing", {"c": torch.zeros(1)}, {}, overwrite=True)
    tensors, manifest = artifacts.load_artifact(saved, "thing")
    assert set(tensors) == {"c"}
    assert "colour" not in manifest
    assert [p.name for p in saved.parent.glob("*thing*")] == ["thing"]


def test_a_failed_save_leaves_the_old_one(saved: Path) -> None:
    with pytest.raises(TypeError):
        artifacts.save_artifact(saved, "thing", {}, {"not": object()}, overwrite=True)
    assert torch.equal(artifacts.load_artifact(saved, "thing")[0]["a"], TENSORS["a"])


def test_the_same_content_is_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    artifacts.save_artifact(tmp_path / "again", "thing", TENSORS, {"colour": "grün"})
    for name in ("tensors.safetensors", "manifest.json"):
        assert (saved / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize("at", ["_MANIFEST", "_TENSORS"])
def test_one_that_is_replaced_while_it_is_read_is_read_again(
    at: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {"_MANIFEST": "json_object", "_TENSORS": "read_tensors"}
    read = getattr(artifacts, reads[at])
    left = [1]

    def replace_first(*arguments: object) -> object:
        if left:
            left.pop()
            artifacts.save_artifact(saved, "thing", {"c": torch.ones(2)}, {}, overwrite=True)
            if at == "_MANIFEST":  # as if this had come between the two renames
                raise FileNotFoundError("gone")
        return read(*arguments)

    monkeypatch.setattr(artifacts, reads[at], replace_first)
    assert set(artifacts.load_artifact(saved, "thing")[0]) == {"c"}


def test_one_that_is_gone_for_a_moment_is_waited_for(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.rename(saved.with_name("aside"))
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        saved.with_name("aside").rename(saved)

    monkeypatch.setattr("time.sleep", sleep)
    assert torch.equal(artifacts.load_artifact(saved, "thing")[0]["a"], TENSORS["a"])
    (saved / "tensors.safetensors").write_bytes(b"damaged")
    with pytest.raises(ArtifactError):  # at once: nobody is at work there
        artifacts.load_artifact(saved, "thing")
    assert len(waits) == 1


def edit(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "manifest.json").unlink(), "a folder without manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), "is damaged"),
        (lambda f: (f / "manifest.json").write_text("[]"), "is damaged"),
        (lambda f: (f / "tensors.safetensors").unlink(), "cannot be read"),
        (lambda f: (f / "tensors.safetensors").write_bytes(b"x" * 99), "does not belong"),
        (lambda f: edit(f, form=99), "has form 99, this goen reads form 2"),
        (lambda f: edit(f, kind="other"), "holds a other; a thing was asked for"),
    ],
)
def test_every_harm_has_its_sentence(harm, message: str, saved: Path) -> None:  # type: ignore[no-untyped-def]
    harm(saved)
    with pytest.raises(ArtifactError, match=message):
        artifacts.load_artifact(saved, "thing")


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a folder, so no saved thing is there"):
        artifacts.load_artifact(tmp_path / "nothing", "thing")


def test_a_folder_of_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match=r"holds thesis\.txt, not a .* folder that goen made"):
        artifacts.save_artifact(tmp_path / "precious", "thing", TENSORS, {})
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"


def test_a_link_to_a_saved_thing_stays_a_link(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(saved)
    artifacts.save_artifact(tmp_path / "link", "thing", {"c": torch.zeros(1)}, {}, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert set(artifacts.load_artifact(saved, "thing")[0]) == {"c"}
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_stage_says_which_folder_to_delete(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"half")
    for harm in (
        lambda: read_tensors(tmp_path / "x.safetensors"),
        lambda: read_tensors(tmp_path / "y.safetensors"),
        lambda: Tensors({}).integers("counts", (3,)),
        lambda: torch.nn.Linear(2, 2).load_state_dict({}),
    ):
        with (
            pytest.raises(
                ArtifactError, match=r"(?s)is damaged: .* Delete .*; it will be made again"
            ),
            artifacts.reading_stage(tmp_path),
        ):
            harm()
