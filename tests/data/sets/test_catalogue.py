from goen.data.sets.catalogue import (
    CIFAR100_CLASSES,
    CIFAR100_UNLIKE_CIFAR10,
    KNOWN,
)


def test_fifty_classes_unlike_cifar10() -> None:
    fifty = [c for group in CIFAR100_UNLIKE_CIFAR10.values() for c in group]
    assert len(CIFAR100_CLASSES) == len(set(CIFAR100_CLASSES)) == 100
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES)
    assert len(fifty) == len(set(fifty)) == 50
    assert set(fifty) < set(CIFAR100_CLASSES)
    assert len(CIFAR100_UNLIKE_CIFAR10) == 10


def test_every_known_set_can_be_described() -> None:
    for known in KNOWN.values():
        assert known.licence
        assert known.title
        assert set(known.official) <= set(known.splits)
        assert set(known.fingerprints) <= set(known.splits)
