import pickle

import numpy as np
import pytest

from goen.data.sets.cifar_pickle import read_batch
from goen.errors import DataCorrupt
from tests.data.cifar10_files import TEST
from tests.data.local_sets import python2_batch


class Foreign:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        # Not print, in whose place Ray puts another.
        return (exec, ("raise AssertionError('this must never run')",))


def test_a_pickle_with_a_foreign_name_is_refused_and_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = pickle.dumps({b"data": Foreign(), b"labels": []}, protocol=4)
    with pytest.raises(DataCorrupt, match=r"evil.*builtins\.exec.*Nothing of it was run"):
        read_batch(hostile, b"labels", "evil")
    assert capsys.readouterr().out == ""


def test_numpy_itself_is_not_called_by_a_pickle() -> None:
    # _reconstruct with a shape of a petabyte would exhaust memory if NumPy saw it.
    greedy = python2_batch(*TEST).replace(b"(I0\nt", b"(I1125899906842624\nt", 1)
    images, _ = read_batch(greedy, b"labels", "greedy")
    assert (images == TEST[0]).all()


@pytest.mark.parametrize("damage", ["cut", "no labels", "short", "text"])
def test_a_damaged_pickle_is_one_clear_sentence(damage: str) -> None:
    whole = python2_batch(*TEST)
    data = {
        "cut": whole[: len(whole) // 2],
        "no labels": whole.replace(b"labels", b"lobels"),
        "short": whole.replace(b"I3072", b"I3071"),
        "text": b"hello",
    }[damage]
    with pytest.raises(
        DataCorrupt, match=r"batch is not an official CIFAR batch: .*get the set again"
    ):
        read_batch(data, b"labels", "batch")


def test_random_damage_to_a_pickle_never_escapes() -> None:
    whole = np.frombuffer(python2_batch(*TEST), np.uint8)
    rng = np.random.default_rng(0)
    structure = np.flatnonzero(np.arange(len(whole)) < 250)
    for _ in range(400):
        broken = whole.copy()
        broken[rng.choice(structure, 2)] = rng.integers(0, 256, 2)
        try:
            images, labels = read_batch(broken.tobytes(), b"labels", "fuzzed")
        except DataCorrupt:
            continue
        assert images.shape == (len(labels), 3, 32, 32)
