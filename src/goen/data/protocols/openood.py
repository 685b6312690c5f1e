"""The benchmarks of OpenOOD 1.5, from its own folder: image lists, splits, preprocessing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from goen.checks import check_choice
from goen.data.images.decoding import read_image
from goen.data.images.pixel_format import Pixels
from goen.data.images.resizing import RESIZE_FILTER
from goen.data.imageset import ImageSet
from goen.data.sets.image_lists import listed_images, read_image_list
from goen.data.sets.store import describe_broken, prepare
from goen.errors import UsageError, unknown, warn

_CLASSIC, _LARGE = "images_classic", "images_largescale"
# Images of this set have their final size, and are not resized.
_NOT_RESIZED = "imagenet_c"
_CIFAR_FAR = ("mnist", "svhn", "texture", "places365")


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes:
        num_classes: of the ID images.
        near: OOD sets, in the order of the board's rows.
        far: the same.
        shifted: ID images under a covariate shift, for the full-spectrum evaluation.
        tuning: the OOD set, other images of which methods may be tuned with.
        shorter_side: to which images are resized, in proportion.
        size: of the square that is cropped from the middle.
        mean: of the normalisation, after the crop.
        std: the same.
    """

    num_classes: int
    near: tuple[str, ...]
    far: tuple[str, ...]
    shifted: tuple[str, ...]
    tuning: str
    shorter_side: int
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


_CIFAR10 = Benchmark(
    num_classes=10,
    near=("cifar100", "tin"),
    far=_CIFAR_FAR,
    shifted=("cifar10c",),
    tuning="tin",
    shorter_side=32,
    size=32,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
_IMAGENET = Benchmark(
    num_classes=1000,
    near=("ssb_hard", "ninco"),
    far=("inaturalist", "textures", "openimage_o"),
    shifted=("imagenet_v2", "imagenet_c", "imagenet_r"),
    tuning="openimage_o",
    shorter_side=256,
    size=224,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
BENCHMARKS: Mapping[str, Benchmark] = {
    "cifar10": _CIFAR10,
    "cifar100": replace(
        _CIFAR10,
        num_classes=100,
        near=("cifar10", "tin"),
        shifted=(),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
    ),
    "imagenet200": replace(
        _IMAGENET,
        num_classes=200,
        shifted=("imagenet200_v2", "imagenet200_c", "imagenet200_r"),
    ),
    "imagenet": _IMAGENET,
}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of this name; an error lists those that there are."""
    if name not in BENCHMARKS:
        raise unknown("benchmark of OpenOOD", name, BENCHMARKS)
    return BENCHMARKS[name]


@dataclass(frozen=True)
class OpenOodSets:
    """The image sets of a benchmark; ``ood`` by group and name."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet
    ood: Mapping[str, Mapping[str, ImageSet]]
    tuning: Mapping[str, ImageSet]


def open_benchmark(
    root: Path, name: str, *, full_spectrum: bool = False, sets: Sequence[str] = ()
) -> OpenOodSets:
    """The sets of a benchmark from OpenOOD's data folder.

    An image of an evaluated set that is also a training, validation or tuning image, pixel for
    pixel, is left out with a warning; OpenOOD counts it. So are files that cannot be read.

    Args:
        root: with ``benchmark_imglist/``, ``images_classic/`` and ``images_largescale/``.
        name: ``cifar10``, ``cifar100``, ``imagenet200`` or ``imagenet``.
        full_spectrum: whether the test images include those under a covariate shift.
        sets: the OOD sets to evaluate on, which alone need to be there; all if none is named.

    Raises:
        DataMissing: lists or images that are not there.
        UsageError: an unknown benchmark or OOD set, or one without a covariate shift.
    """
    benchmark = find_benchmark(name)
    shifted = _shifted(name) if full_spectrum else ()
    for one in sets:
        check_choice("OOD set", one, (*benchmark.near, *benchmark.far))
    lists = root / "benchmark_imglist" / name
    images = _LARGE if name.startswith("imagenet") else _CLASSIC
    classes = _class_names(lists / f"train_{name}.txt", benchmark.num_classes)
    decode = partial(decode_as_openood, benchmark=benchmark)
    decoding = (benchmark.shorter_side, benchmark.size, RESIZE_FILTER, "openood")

    def opened(kind: str, *sets: str, ood: bool = False) -> ImageSet:
        files = [lists / f"{kind}_{one}.txt" for one in sets]
        where = _CLASSIC if sets[0] == "textures" else images
        named = (sets[0],) if ood else classes
        source = listed_images(files, root / where, named, decode, *decoding)
        found = prepare(source, f"openood/{name}/{kind}_{'+'.join(sets)}")
        if found.broken:
            warn(describe_broken(found.images.name, found.broken))
        return found.images

    train, validation = opened("train", name), opened("val", name)
    tuning = opened("val", benchmark.tuning, ood=True)
    used = (train, validation, tuning)
    groups = {
        group: [one for one in members if one in sets or not sets]
        for group, members in (("near", benchmark.near), ("far", benchmark.far))
    }
    return OpenOodSets(
        train,
        validation.without(train),
        _evaluated(opened("test", name, *shifted), *used),
        {
            group: {one: _evaluated(opened("test", one, ood=True), *used) for one in members}
            for group, members in groups.items()
            if members
        },
        {benchmark.tuning: tuning},
    )


def _shifted(name: str) -> tuple[str, ...]:
    """The test sets of a benchmark under a covariate shift."""
    shifted = find_benchmark(name).shifted
    if not shifted:
        with_shift = [known for known, other in BENCHMARKS.items() if other.shifted]
        raise UsageError(
            f"{name} has no images under a covariate shift in OpenOOD; full-spectrum evaluation is "
            f"for {', '.join(with_shift)}."
        )
    return shifted


def decode_as_openood(file: Path, benchmark: Benchmark) -> Pixels:
    """An image as OpenOOD reads it: RGB, its shorter side resized, the middle cropped; uint8."""
    resized = not any(part.startswith(_NOT_RESIZED) for part in file.parts[-4:-1])
    shorter = benchmark.shorter_side if resized else None
    return read_image(file, (benchmark.size, benchmark.size), shorter_side=shorter)


def _evaluated(images: ImageSet, *used: ImageSet) -> ImageSet:
    kept = images.without(*used)
    if len(kept) < len(images):
        left_out = len(images) - len(kept)
        warn(
            f"{images.name}: {left_out:,} of {len(images):,} images are training, validation or "
            "tuning images, too, and are left out. OpenOOD counts them."
        )
    return kept


def _class_names(train: Path, count: int) -> tuple[str, ...]:
    """The folders of the training images, if each class has one of its own; else numbers."""
    paths, labels = read_image_list(train)
    folders: dict[int, set[str]] = {}
    for path, label in zip(paths, labels.tolist(), strict=True):
        folders.setdefault(label, set()).add(PurePosixPath(path).parent.name)
    names = [next(iter(folders.get(label, {""}))) for label in range(count)]
    alone = all(len(found) == 1 for found in folders.values())
    if alone and len({*names}) == count and all(names):
        return tuple(names)
    return tuple(map(str, range(count)))
