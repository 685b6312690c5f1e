import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from goen.data import ImageSet, OodSet, Protocol, protocol
from goen.data.protocols.generated import SPLIT_SEED
from goen.data.sets.catalogue import CIFAR100_CLASSES, CIFAR100_UNLIKE_CIFAR10, KNOWN
from goen.data.sets.embedded import noise
from goen.data.transforms.strong import strongly_augmented
from goen.errors import DataCorrupt, DataMissing, LeakError, UsageError

SALTS = {
    "cifar10train": 0,
    "cifar10test": 1,
    "cifar100test": 2,
    "svhntest": 3,
    "placesval": 4,
    "cifar100train": 5,
}


def fake_cifar(folder: Path, name: str, split: str, count: int, classes: int) -> None:
    """The right number of tiny different images, so that the protocol can be seen at full size."""
    pixels = np.zeros((count, 4, 4, 3), np.uint8)
    salt = SALTS[name + split]
    pixels.reshape(count, -1)[:, :4] = np.arange(count, dtype="<u4").view(np.uint8).reshape(-1, 4)
    pixels.reshape(count, -1)[:, 4] = salt
    labels = np.arange(count) % classes
    np.savez(folder / f"{name}_{split}.npz", images=pixels.transpose(0, 3, 1, 2), labels=labels)


@pytest.fixture(scope="module")
def full_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    fake_cifar(folder, "cifar10", "train", 50_000, 10)
    fake_cifar(folder, "cifar10", "test", 10_000, 10)
    fake_cifar(folder, "cifar100", "test", 10_000, 100)
    fake_cifar(folder, "svhn", "test", 26_032, 10)
    fake_cifar(folder, "places", "val", 5_000, 10)
    return folder


def test_cifar10_is_split_as_the_paper_says(full_size: Path) -> None:
    p = protocol("cifar10", data_dir=full_size)
    assert (len(p.train), len(p.validation), len(p.test)) == (45_000, 5_000, 10_000)
    assert {k: len(v) for k, v in p.calibration_ood.items()} == {"svhn": 5_000, "noise": 2_000}
    assert tuple(p.calibration_ood) == ("svhn", "noise")
    sizes = {k: (len(v.images), v.group) for k, v in p.evaluation.items()}
    assert sizes == {
        "svhn": (21_032, "far"),
        "cifar100": (5_000, "near"),
        "noise": (5_000, "noise"),
    }
    assert p.missing == {}
    order = np.random.RandomState(42).permutation(50_000)
    assert (p.train.rows == order[:45_000]).all()
    assert (p.validation.rows == order[45_000:]).all()
    # Published numbers are of these images.
    calibrating = noise(2_000, SPLIT_SEED, stream=1, shape=(3, 4, 4))
    assert p.calibration_ood["noise"].fingerprint == calibrating.fingerprint
    evaluated = noise(5_000, SPLIT_SEED, stream=0, shape=(3, 4, 4))
    assert p.evaluation["noise"].images.fingerprint == evaluated.fingerprint


def test_which_sets_calibrate_is_a_choice_that_moves_no_other_image(full_size: Path) -> None:
    usual = protocol("cifar10", data_dir=full_size, extra=("places",))
    named = protocol("cifar10", data_dir=full_size, calibration=("noise", "svhn"))
    chosen = protocol("cifar10", data_dir=full_size, calibration=("places", "noise"))

    def fingerprints(p: Protocol) -> list[str]:
        sets = (p.train, p.calibration_id, p.held_out, p.test, *p.calibration_ood.values())
        return [images.fingerprint for images in sets]

    assert fingerprints(named) == fingerprints(usual)  # in the same order, too
    assert list(chosen.calibration_ood) == ["places", "noise"]
    assert fingerprints(chosen)[:4] == fingerprints(usual)[:4]
    assert fingerprints(chosen)[5] == fingerprints(usual)[5]  # the noise
    for name in ("svhn", "cifar100", "noise"):
        kept = chosen.evaluation[name].images.fingerprint
        assert kept == usual.evaluation[name].images.fingerprint
    # Half of Places calibrates, the other is evaluated on, though no extra set was asked for.
    parts = chosen.calibration_ood["places"], chosen.evaluation["places"].images
    assert [len(part) for part in parts] == [2_500, 2_500]
    order = np.random.RandomState(42).permutation(5_000)
    assert (parts[0].rows == order[:2_500]).all()
    assert (parts[1].rows == order[2_500:]).all()
    assert len(usual.evaluation["places"].images) == 5_000
    assert chosen.evaluation["places"].group == "far"
    assert not protocol("cifar10", data_dir=full_size, calibration=()).calibration_ood


def test_an_image_that_is_twice_in_a_set_is_in_one_half(full_size: Path, tmp_path: Path) -> None:
    for file in full_size.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "places_val.npz").unlink()
    with np.load(full_size / "places_val.npz") as archive:
        images, labels = archive["images"].copy(), archive["labels"]
    order = np.random.RandomState(42).permutation(5_000)
    images[order[-1]] = images[order[0]]
    np.savez(tmp_path / "places_val.npz", images=images, labels=labels)
    p = protocol("cifar10", data_dir=tmp_path, calibration=("places",))
    assert len(p.evaluation["places"].images) == 2_499


def test_strong_augmentations_are_of_images_that_set_no_threshold(
    full_size: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[ImageSet] = []

    def noted(images: ImageSet, seed: int) -> ImageSet:
        given.append(images)
        return strongly_augmented(images, seed)

    monkeypatch.setattr(sys.modules["goen.data.protocols.generated"], "strongly_augmented", noted)
    p = protocol("cifar10", data_dir=full_size, calibration=("svhn", "noise", "augmented"))
    assert list(p.calibration_ood) == ["svhn", "noise", "augmented"]
    augmented = p.calibration_ood["augmented"]
    assert [images.fingerprint for images in given] == [p.calibration_id.fingerprint]
    paper = dataclasses.replace(p, threshold_images="test")
    assert given[0].overlap(paper.held_out) == given[0].overlap(p.held_out) == 0
    assert 2_700 < len(augmented) <= 3_000
    for images in (p.train, p.validation, p.test):
        assert augmented.overlap(images) == 0
    assert "augmented" not in p.evaluation


def test_a_set_that_is_named_to_calibrate_must_be_there(tmp_path: Path) -> None:
    fake_cifar(tmp_path, "cifar10", "train", 50_000, 10)
    fake_cifar(tmp_path, "cifar10", "test", 10_000, 10)
    for name in ("svhn", "places"):
        with pytest.raises(DataMissing, match=f"{name}/.* is not here"):
            protocol("cifar10", data_dir=tmp_path, calibration=(name, "noise"))


def test_the_fifty_classes_are_kept_and_no_other(full_size: Path) -> None:
    near = protocol("cifar10", data_dir=full_size).evaluation["cifar100"].images
    fifty = {c for group in CIFAR100_UNLIKE_CIFAR10.values() for c in group}
    assert set(near.classes) == fifty
    original = np.array(CIFAR100_CLASSES)[near.rows % 100]
    assert (original == np.array(near.classes)[near.labels]).all()


def test_the_other_fifty_classes_complete_cifar100(full_size: Path) -> None:
    p = protocol("cifar10", data_dir=full_size, extra=("cifar100-rest",))
    unlike, rest = (p.evaluation[name].images for name in ("cifar100", "cifar100-rest"))
    assert p.evaluation["cifar100-rest"].group == "near"
    assert {*unlike.classes, *rest.classes} == set(CIFAR100_CLASSES)
    assert sorted([*unlike.rows, *rest.rows]) == list(range(10_000))
    assert not {*unlike.rows} & {*rest.rows}
    original = np.array(CIFAR100_CLASSES)[rest.rows % 100]
    assert (original == np.array(rest.classes)[rest.labels]).all()


def test_what_cifar100_shares_with_cifar10_is_not_ood(full_size: Path, tmp_path: Path) -> None:
    for file in full_size.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "cifar100_test.npz").unlink()
    with np.load(full_size / "cifar100_test.npz") as archive:
        images, labels = archive["images"].copy(), archive["labels"]
    shared = {CIFAR100_CLASSES.index("cattle"): "train", CIFAR100_CLASSES.index("bus"): "test"}
    for row, split in shared.items():
        with np.load(full_size / f"cifar10_{split}.npz") as archive:
            images[row] = archive["images"][5]
    np.savez(tmp_path / "cifar100_test.npz", images=images, labels=labels)
    rest = (
        protocol("cifar10", data_dir=tmp_path, extra=("cifar100-rest",))
        .evaluation["cifar100-rest"]
        .images
    )
    assert len(rest) == 4_998
    assert not shared.keys() & set(rest.rows.tolist())


def test_a_missing_set_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake_cifar(tmp_path, "cifar10", "train", 50_000, 10)
    fake_cifar(tmp_path, "cifar10", "test", 10_000, 10)
    p = protocol("cifar10", data_dir=tmp_path, extra=("places", "cifar100-rest"))
    assert list(p.evaluation) == ["noise"]
    assert list(p.calibration_ood) == ["noise"]
    assert sorted(p.missing) == ["cifar100", "cifar100-rest", "places", "svhn"]
    assert [record.levelname for record in caplog.records] == 3 * ["WARNING"]  # CIFAR-100 once
    assert all(record.name == "goen.data.protocol" for record in caplog.records)
    assert all(message.endswith("It is left out.") for message in caplog.messages)
    assert "goen data get svhn" in p.missing["svhn"]


def test_without_cifar10_there_is_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="goen data get cifar10"):
        protocol("cifar10", data_dir=tmp_path)


def test_digits_mirror_the_paper() -> None:
    p = protocol("digits")
    assert p.train.classes == tuple("0123456")
    assert p.evaluation["unseen-digits"].images.classes == tuple("789")
    assert p.calibration_ood["photographs"].name == "photograph of china"
    assert p.evaluation["photographs"].images.name == "photograph of flower"
    assert tuple(p.calibration_ood) == ("photographs", "noise")
    assert set(p.train.counts().values()) <= set(range(70, 120))
    # Three fifths of 300 calibrate, two fifths are held out for the threshold.
    assert (len(p.calibration_id), len(p.held_out)) == (180, 120)
    calibrating, evaluated = (noise(n, SPLIT_SEED, stream=s) for n, s in ((400, 1), (1000, 0)))
    assert p.calibration_ood["noise"].fingerprint == calibrating.fingerprint
    assert p.evaluation["noise"].images.fingerprint == evaluated.fingerprint


def test_the_threshold_may_come_from_test_images() -> None:
    p = dataclasses.replace(protocol("digits"), threshold_images="test")
    assert p.calibration_id is p.validation
    assert len(p.held_out) == 60  # a fifth of 300
    assert p.held_out.overlap(p.test) == 60
    others = p.test.take(np.flatnonzero(p.sets_no_threshold))
    assert p.held_out.overlap(others) == 0
    assert len(others) == 300 - p.test.overlap(p.held_out)
    assert protocol("digits").sets_no_threshold.all()


def test_a_protocol_that_leaks_cannot_exist() -> None:
    p = protocol("digits")
    with pytest.raises(LeakError, match=r"photograph of china shares 260 of its 260 images"):
        dataclasses.replace(p, evaluation={"x": OodSet(p.calibration_ood["photographs"], "far")})
    with pytest.raises(LeakError, match=r"shares 664 of its 664 images with digits 0-6\[train\]"):
        dataclasses.replace(p, test=p.train)
    with pytest.raises(LeakError, match=r"digits 0-6\[validation\] shares 300"):
        dataclasses.replace(p, train=p.validation)


def test_unknown_names_are_corrected() -> None:
    with pytest.raises(UsageError, match="Did you mean 'digits'"):
        protocol("digit")
    with pytest.raises(UsageError, match="Did you mean 'places'"):
        protocol("cifar10", extra=("place",))
    with pytest.raises(UsageError, match="Unknown set for calibration 'place'"):
        protocol("cifar10", calibration=("place",))
    with pytest.raises(UsageError, match=r"Unknown set for calibration 'svhn'.*photographs"):
        protocol("digits", calibration=("svhn",))
    assert "svhn" in KNOWN


def test_sets_of_other_sizes_cannot_be_mixed() -> None:
    p = protocol("digits")
    large = ImageSet("large", np.zeros((1, 3, 64, 64), np.uint8), np.zeros(1), ("a",))
    with pytest.raises(DataCorrupt, match=r"large has images of 64×64, .* of 32×32"):
        dataclasses.replace(p, evaluation={"large": OodSet(large, "far")})


def test_extra_sets_do_not_go_with_digits() -> None:
    with pytest.raises(UsageError, match="go with cifar10"):
        protocol("digits", extra=("mnist",))


def own_sets() -> tuple[ImageSet, ImageSet, ImageSet]:
    p = protocol("digits")
    return p.train.take(range(200)), p.validation.take(range(100)), p.test.take(range(60))


def test_own_sets_make_a_protocol() -> None:
    p = protocol("digits")
    photographs, unseen = p.evaluation["photographs"].images, p.evaluation["unseen-digits"].images
    groups = {"near": {"unseen": unseen}, "far": {"photographs": photographs}}
    own = Protocol.from_sets(*own_sets(), ood=groups, name="mine")
    assert own.name == "mine"
    assert {n: (o.group, len(o.images)) for n, o in own.evaluation.items()} == {
        "unseen": ("near", len(unseen)),
        "photographs": ("far", len(photographs)),
    }
    # Generated, as many of a kind as there are ID images that calibrate: three fifths of 100.
    assert {n: len(images) for n, images in own.calibration_ood.items()} == {
        "noise": 60,
        "augmented": 60,
    }
    assert own.calibration_ood["augmented"].name == "augmented digits 0-6[validation][calibration]"
    given = Protocol.from_sets(*own_sets(), ood={"u": unseen}, calibration_ood={"p": photographs})
    assert given.evaluation == {"u": OodSet(unseen, "ood")}
    assert given.calibration_ood == {"p": photographs}


def test_without_ood_images_noise_is_evaluated_on(caplog: pytest.LogCaptureFixture) -> None:
    own = Protocol.from_sets(*own_sets(), calibration_ood={}, name="mine")
    (found,) = own.evaluation.values()
    assert (found.group, len(found.images), own.calibration_ood) == ("noise", 60, {})
    assert "mine has no OOD images to evaluate on" in caplog.text


def test_generated_images_have_the_format_of_the_training_images() -> None:
    def some(count: int, salt: int) -> ImageSet:
        pixels = (
            np.random.default_rng(salt).integers(0, 65_536, (count, 2, 8, 12)).astype(np.uint16)
        )
        return ImageSet(f"bands {salt}", pixels, np.zeros(count), ("a",))

    own = Protocol.from_sets(some(40, 0), some(30, 1), some(20, 2))
    for images in (*own.calibration_ood.values(), own.evaluation["noise"].images):
        assert images.image_shape == (2, 8, 12)
        assert images.pixels.dtype == np.uint16
        assert images.read().max() > 60_000


@pytest.mark.parametrize(
    ("ood", "message"),
    [
        ({"closer": {"a": 0}}, "Unknown group of OOD sets 'closer'"),
        ({"near": {"a": 0}, "far": {"a": 0}}, "'a' is already taken"),
        ({"test": 0}, "'test' is already taken"),
    ],
)
def test_names_and_groups_of_ood_sets_are_checked(ood: dict[str, object], message: str) -> None:
    images = protocol("digits").evaluation["photographs"].images
    given = {k: dict.fromkeys(v, images) if isinstance(v, dict) else images for k, v in ood.items()}
    with pytest.raises(UsageError, match=message):
        Protocol.from_sets(*own_sets(), ood=given)


def test_id_sets_have_the_same_classes() -> None:
    train, held_out, test = own_sets()
    others = dataclasses.replace(test, classes=tuple("abcdefg"))
    with pytest.raises(UsageError, match=r"has other classes .* a, b, c, .* instead of 0, 1"):
        Protocol.from_sets(train, held_out, others)


def test_cifar100_has_cifar10_as_near_ood(full_size: Path, tmp_path: Path) -> None:
    for file in full_size.iterdir():
        (tmp_path / file.name).symlink_to(file)
    fake_cifar(tmp_path, "cifar100", "train", 50_000, 100)
    # Two test images of CIFAR-10 are in CIFAR-100 as well.
    (tmp_path / "cifar10_test.npz").unlink()
    with np.load(full_size / "cifar10_test.npz") as archive:
        images, labels = archive["images"].copy(), archive["labels"]
    with np.load(full_size / "cifar100_test.npz") as archive:
        images[:2] = archive["images"][5:7]
    np.savez(tmp_path / "cifar10_test.npz", images=images, labels=labels)
    p = protocol("cifar100", data_dir=tmp_path, extra=("places",))
    assert (p.name, len(p.train.classes)) == ("cifar100", 100)
    assert (len(p.train), len(p.validation), len(p.test)) == (45_000, 5_000, 10_000)
    assert {k: len(v) for k, v in p.calibration_ood.items()} == {"svhn": 5_000, "noise": 2_000}
    assert {k: (len(v.images), v.group) for k, v in p.evaluation.items()} == {
        "svhn": (21_032, "far"),
        "cifar10": (9_998, "near"),
        "noise": (5_000, "noise"),
        "places": (5_000, "far"),
    }
    with pytest.raises(UsageError, match="Unknown extra set 'cifar100-rest'"):
        protocol("cifar100", data_dir=tmp_path, extra=("cifar100-rest",))
