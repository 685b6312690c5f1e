from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.data import Protocol
from goen.data.protocols.openood import BENCHMARKS, decode_as_openood, find_benchmark
from goen.errors import DataMissing, GoenWarning, UsageError
from tests.data.openood_folder import CLASSES, write_openood


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_openood(tmp_path_factory.mktemp("openood"))


def test_the_sets_are_those_of_its_lists(root: Path) -> None:
    found = Protocol.from_openood(root, "cifar10")
    assert found.name == "openood-cifar10"
    assert (len(found.train), len(found.validation), len(found.test)) == (120, 300, 30)
    assert found.train.classes == CLASSES
    assert found.test.labels.tolist() == list(range(10)) * 3
    groups = {name: ood.group for name, ood in found.evaluation.items()}
    near, far = ("cifar100", "tin"), ("mnist", "svhn", "texture", "places365")
    assert groups == dict.fromkeys(near, "near") | dict.fromkeys(far, "far")
    assert list(groups) == [*near, *far]  # the order of its rows
    assert {len(ood.images) for ood in found.evaluation.values()} == {24}
    assert {name: len(images) for name, images in found.calibration_ood.items()} == {"tin": 12}
    assert found.train.image_shape == (3, 32, 32)


def test_full_spectrum_adds_the_shifted_images_to_the_test_images(root: Path) -> None:
    plain = Protocol.from_openood(root, "cifar10")
    found = Protocol.from_openood(root, "cifar10", full_spectrum=True)
    assert found.name == "openood-cifar10-fs"
    assert found.test.digests[:30].tolist() == plain.test.digests.tolist()
    assert found.test.labels.tolist() == list(range(10)) * 6


def test_a_benchmark_without_shifted_images_has_no_full_spectrum(root: Path) -> None:
    with pytest.raises(UsageError, match="cifar100 has no images under a covariate shift"):
        Protocol.from_openood(root, "cifar100", full_spectrum=True)


def test_the_protocol_has_its_normalisation(root: Path) -> None:
    found = Protocol.from_openood(root, "cifar10")
    assert found.normalisation == ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert repr(found).startswith(
        "Protocol(openood-cifar10; 120 training, 300 validation and 30 test images of 10 classes; "
        "near: cifar100 24, tin 24; far: mnist 24,"
    )
    assert repr(found).endswith("calibrating: tin)")


@pytest.mark.parametrize("size", [(90, 60), (60, 91), (28, 28), (64, 64), (33, 500)])
@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_an_image_is_read_as_pillow_does_it_step_by_step(
    tmp_path: Path, size: tuple[int, int], name: str
) -> None:
    benchmark = find_benchmark(name)
    rng = np.random.default_rng(1)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    image.save(tmp_path / "a.png")
    width, height = size
    # Resize(shorter side), int() of the longer one; CenterCrop, round() of the rest by two.
    scale = benchmark.shorter_side
    longer = int(scale * max(size) / min(size))
    target = (scale, longer) if width <= height else (longer, scale)
    # Width first, as Pillow did until version 12; Pillow 13 takes the faster order.
    resized = image.resize((target[0], height), Image.Resampling.BILINEAR)
    resized = resized.resize(target, Image.Resampling.BILINEAR)
    left = round((resized.width - benchmark.size) / 2.0)
    top = round((resized.height - benchmark.size) / 2.0)
    expected = resized.crop((left, top, left + benchmark.size, top + benchmark.size))
    found = decode_as_openood(tmp_path / "a.png", benchmark)
    assert np.array_equal(found, np.asarray(expected).transpose(2, 0, 1))


def test_imagenet_c_is_not_resized(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)
    for place in ("imagenet_c/fog/3", "imagenet_1k/val/x"):
        (tmp_path / place).mkdir(parents=True)
        Image.fromarray(image).save(tmp_path / place / "a.png")
    kept, resized = (
        decode_as_openood(tmp_path / place / "a.png", BENCHMARKS["imagenet"])
        for place in ("imagenet_c/fog/3", "imagenet_1k/val/x")
    )
    assert np.array_equal(kept, image.transpose(2, 0, 1))
    assert not np.array_equal(resized, kept)


def test_images_that_were_used_are_left_out_with_a_warning(tmp_path: Path) -> None:
    root = write_openood(tmp_path, each=1)
    images = root / "images_classic"
    taken = (images / "cifar10" / "train" / "cat" / "train0003.png").read_bytes()
    (images / "cifar100" / "test" / "x" / "test0005.png").write_bytes(taken)
    with pytest.warns(GoenWarning, match=r"test_cifar100: 1 of 8 images are training"):
        found = Protocol.from_openood(root, "cifar10")
    assert len(found.evaluation["cifar100"].images) == 7


def test_what_is_missing_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Unknown benchmark of OpenOOD 'cifar'. Did you mean"):
        Protocol.from_openood(root, "cifar")
    with pytest.raises(DataMissing, match=r"train_cifar100\.txt is not there"):
        Protocol.from_openood(root, "cifar100")
    small = write_openood(tmp_path, each=1)
    (small / "images_classic" / "svhn" / "test" / "x" / "test0002.png").unlink()
    with pytest.raises(DataMissing, match=r"1 of the 8 images of test_svhn\.txt are not in .*0002"):
        Protocol.from_openood(small, "cifar10")


def test_files_that_cannot_be_read_are_left_out_with_a_warning(tmp_path: Path) -> None:
    root = write_openood(tmp_path, each=1)
    file = root / "images_classic" / "cifar100" / "test" / "x" / "test0005.png"
    file.write_bytes(file.read_bytes()[:100])
    said = r"test_cifar100: 1 file cannot be read and is left out: cifar100/test/x/test0005\.png\."
    with pytest.warns(GoenWarning, match=said):
        found = Protocol.from_openood(root, "cifar10", sets=["cifar100"])
    assert len(found.evaluation["cifar100"].images) == 7


def test_the_sets_that_are_named_alone_need_to_be_there(tmp_path: Path) -> None:
    root = write_openood(tmp_path, each=1)
    for name in ("mnist", "tin"):
        (root / "benchmark_imglist" / "cifar10" / f"test_{name}.txt").unlink()
    found = Protocol.from_openood(root, "cifar10", sets=["svhn", "cifar100"])
    assert {name: one.group for name, one in found.evaluation.items()} == {
        "cifar100": "near",
        "svhn": "far",
    }
    assert [*Protocol.from_openood(root, "cifar10", sets=["svhn"]).evaluation] == ["svhn"]
    with pytest.raises(UsageError, match=r"OOD set.*'svnh'"):
        Protocol.from_openood(root, "cifar10", sets=["svnh"])


def test_the_published_sets_of_every_benchmark() -> None:
    assert {name: (b.num_classes, b.shorter_side, b.size) for name, b in BENCHMARKS.items()} == {
        "cifar10": (10, 32, 32),
        "cifar100": (100, 32, 32),
        "imagenet200": (200, 256, 224),
        "imagenet": (1000, 256, 224),
    }
    # Mean and standard deviation of the training images, as the benchmark's own networks take them.
    imagenet = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert {name: (b.mean, b.std) for name, b in BENCHMARKS.items()} == {
        "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        "imagenet200": imagenet,
        "imagenet": imagenet,
    }
    assert BENCHMARKS["cifar100"].near == ("cifar10", "tin")
    assert BENCHMARKS["imagenet"].far == ("inaturalist", "textures", "openimage_o")
