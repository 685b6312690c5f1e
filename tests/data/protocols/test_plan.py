"""Where the images of a folder lie: its own parts, or classes to be split."""

from pathlib import Path

import pytest

from goen.data.protocols.plan import Plan, find_parts, group_places, name_calibration, name_places
from goen.errors import UsageError
from tests.data.protocols.folders import write_classes, write_images


def test_parts_are_found_by_the_usual_names(tmp_path: Path) -> None:
    for name in ("Train", "valid", "testing"):
        write_classes(tmp_path / name, {"a": 1, "b": 1})
    assert {role: path.name for role, path in find_parts(tmp_path).items()} == {
        "train": "Train",
        "validation": "valid",
        "test": "testing",
    }


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    write_classes(tmp_path, {"bus": 1, "train": 1})
    assert find_parts(tmp_path) == {"train": tmp_path}


def test_two_folders_for_one_role_are_refused(tmp_path: Path) -> None:
    for name in ("train", "val", "validation"):
        write_classes(tmp_path / name, {"a": 1})
    with pytest.raises(UsageError, match="val/ and validation/: which holds the validation"):
        find_parts(tmp_path)
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        find_parts(tmp_path / "nowhere")


def test_places_have_the_names_of_their_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "a b", 1)
    write_images(tmp_path / "other" / "a b", 1)
    assert name_places([str(tmp_path / "a b"), "svhn"], "sets") == {
        "a b": str(tmp_path / "a b"),
        "svhn": "svhn",
    }
    with pytest.raises(UsageError, match="Two sets have the name 'a b'"):
        name_places([tmp_path / "a b", tmp_path / "other" / "a b"], "sets")


def test_groups_are_given_or_not(tmp_path: Path) -> None:
    assert group_places({"x": "p", "near": ["svhn"], "far": {"y": "q"}}) == {
        "ood": {"x": "p"},
        "near": {"svhn": "svhn"},
        "far": {"y": "q"},
    }
    assert group_places("svhn") == {"ood": {"svhn": "svhn"}}
    assert name_calibration(["noise", "svhn"]) == {"noise": None, "svhn": "svhn"}


def test_a_share_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_classes(tmp_path / name, {"a": 1})
    plan = Plan.of_folder(tmp_path, validation=0.3)
    assert (plan.train, plan.validation, plan.test) == (tmp_path / "train", 0.3, None)
    assert plan.calibrated_with(["augmented"]).calibration == {"augmented": None}
