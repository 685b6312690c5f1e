"""A small CIFAR-10 in each of the forms it is published in."""

from pathlib import Path

from tests.data.local_sets import binary_batch, python2_batch, random_batch, write_tar

TRAIN = [random_batch(seed) for seed in range(5)]
TEST = random_batch(9)


def binary_members() -> dict[str, bytes]:
    named = {f"data_batch_{i}.bin": binary_batch(*b) for i, b in enumerate(TRAIN, 1)}
    return named | {"test_batch.bin": binary_batch(*TEST)}


def pickle_members() -> dict[str, bytes]:
    named = {f"data_batch_{i}": python2_batch(*b) for i, b in enumerate(TRAIN, 1)}
    return named | {"test_batch": python2_batch(*TEST)}


def lay_out(form: str, root: Path) -> None:
    encoding, container = form.split()
    members = binary_members() if encoding == "binary" else pickle_members()
    folder = "cifar-10-batches-bin" if encoding == "binary" else "cifar-10-batches-py"
    if container == "archive":
        archive = "cifar-10-binary.tar.gz" if encoding == "binary" else "cifar-10-python.tar.gz"
        write_tar(root / archive, {f"{folder}/{n}": c for n, c in members.items()})
        return
    place = root / "cifar10" / folder if container == "nested" else root / folder
    place.mkdir(parents=True)
    for name, content in members.items():
        (place / name).write_bytes(content)
