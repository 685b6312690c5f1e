import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from goen.detectors import _bank
from goen.detectors._bank import Bank, check_enough_rows, sample_rows
from goen.errors import ArtifactError
from goen.functional.neighbours import NeighbourIndex
from goen.io.limits import CLASSES as MOST
from goen.io.tensors import Tensors
from goen.outputs import Outputs

CLASSES = 4


def stream(count: int, seed: int = 0) -> tuple[Outputs, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=g)
    features = {"a": torch.randn(count, 3, generator=g), "b": torch.randn(count, 5, generator=g)}
    return Outputs(torch.zeros(count, CLASSES), features), labels


def unit(rows: Tensor) -> Tensor:
    return rows.double() / rows.double().norm(dim=1, keepdim=True)


def test_a_distance_worked_by_hand() -> None:
    # One class of 100 rows: the second neighbour. 98 at (0, 1), then at 60° and 0° to (1, 0).
    rows = torch.tensor([[0.0, 3.0]]).repeat(100, 1)
    rows[7], rows[8] = torch.tensor([0.5, math.sqrt(0.75)]) * 9, torch.tensor([2.0, 0.0])
    bank = Bank(["z"]).update(Outputs(torch.zeros(100, 1), {"z": rows}), torch.zeros(100).long())
    assert bank.neighbour == 2
    probe = Outputs(torch.zeros(2, 1), {"z": torch.tensor([[7.0, 0.0], [0.0, 0.0]])})
    # Unit vectors 60° apart are at distance 1; nothing is nearer to zeros than a right angle.
    assert np.allclose(bank.distance(probe, "z"), [1.0, math.sqrt(2)], atol=1e-7)


def test_the_distance_is_that_of_sklearn_among_all_rows_that_fit() -> None:
    outputs, labels = stream(900)
    bank = Bank(["a", "b"]).update(outputs, labels)
    assert bank.neighbour == round(int(torch.bincount(labels).min()) / 50) == 4
    probe, _ = stream(60, seed=1)
    for layer in ("a", "b"):
        nearest = NearestNeighbors(n_neighbors=4).fit(unit(outputs.features[layer]).numpy())
        expected = nearest.kneighbors(unit(probe.features[layer]).numpy())[0][:, -1]
        assert np.allclose(bank.distance(probe, layer), expected, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 500), max_size=4), st.integers(1, 300))
def test_any_chunks_keep_the_same_rows(cuts: list[int], rows: int) -> None:
    outputs, labels = stream(500)
    whole = Bank(["a", "b"], rows).update(outputs, labels)
    parts = Bank(["a", "b"], rows)
    places = sorted({0, *cuts, 500})
    for start, end in pairwise(places):
        parts.update(outputs[start:end], labels[start:end])
    for name, value in whole.state().items():
        assert torch.equal(parts.state()[name], value), name


def test_rows_that_come_one_by_one_are_kept_as_those_that_come_at_once() -> None:
    outputs, labels = stream(60)
    whole = Bank(["a"], 12).update(outputs, labels)
    single = Bank(["a"], 12)
    for row in range(60):
        single.update(outputs[row : row + 1], labels[row : row + 1])
    assert torch.equal(single.numbers, whole.numbers)
    assert torch.equal(single.unit["a"], whole.unit["a"])
    # Which rows those are is known without their features.
    assert torch.equal(sample_rows(labels, CLASSES, 12), whole.numbers)
    assert torch.equal(sample_rows(labels, CLASSES, 10), whole.numbers)  # three of each class


def test_a_class_without_images_does_not_count_as_the_smallest() -> None:
    outputs, labels = stream(600)
    bank = Bank(["a"]).update(outputs, labels.clamp_max(2))
    counts = torch.bincount(bank.state()["labels"], minlength=CLASSES)
    assert counts[3] == 0
    assert bank.neighbour == round(int(counts[:3].min()) / 50) > 1


def test_every_class_keeps_its_share_and_a_rare_one_all_it_has() -> None:
    outputs, labels = stream(1000)
    labels[:] = 0
    labels[:7] = 3
    bank = Bank(["a"], rows=40).update(outputs, labels)
    kept = bank.state()["labels"]
    assert torch.bincount(kept, minlength=CLASSES).tolist() == [10, 0, 0, 7]
    own = {tuple(row) for row in unit(outputs.features["a"]).float().tolist()}
    assert all(tuple(row) in own for row in bank.unit["a"].tolist())


def test_a_rare_class_has_its_neighbours_among_its_own() -> None:
    g = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.zeros(900), torch.ones(20)]).long()
    rows = torch.randn(920, 3, generator=g) * 0.01 + torch.eye(3)[labels]
    outputs = Outputs(torch.zeros(920, 4), {"z": rows})
    bank = Bank(["z"]).update(outputs, labels)
    assert bank.neighbour == 1
    probe = Outputs(torch.zeros(1, 4), {"z": torch.eye(3)[1:2]})
    assert bank.distance(probe, "z").item() < 0.1


def test_rows_are_drawn_evenly_from_the_whole_stream() -> None:
    count = 4000
    position = torch.arange(count, dtype=torch.float32)[:, None]
    rows = torch.cat([position, torch.full_like(position, count)], 1)
    bank = Bank(["z"], 1000).update(
        Outputs(torch.zeros(count, 1), {"z": rows}), torch.zeros(count, dtype=torch.int64)
    )
    kept = bank.unit["z"].double()
    places = (kept[:, 0] / kept[:, 1] * count).sort().values
    # A quarter of them in each quarter, within four standard deviations (about 12 rows).
    counts = torch.histc(places, 4, 0, count)
    assert (counts - 250).abs().max() < 50
    assert counts.sum() == 1000


def test_the_state_goes_on_where_it_was_saved() -> None:
    outputs, labels = stream(500)
    whole = Bank(["a", "b"], 60).update(outputs, labels)
    first = Bank(["a", "b"], 60).update(outputs[:200], labels[:200])
    again = Bank(["a", "b"]).load_state(first.state()).update(outputs[200:], labels[200:])
    for name, value in whole.state().items():
        assert torch.equal(again.state()[name], value), name


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of the indices that banks have made."""
    widths: list[int] = []

    def make(bank: Tensor) -> NeighbourIndex:
        widths.append(bank.shape[1])
        return NeighbourIndex(bank)

    monkeypatch.setattr(_bank, "NeighbourIndex", make)
    return widths


def test_an_index_is_made_once_for_all_searches(made: list[int]) -> None:
    outputs, labels = stream(300)
    bank = Bank(["a", "b"])
    for rows in (slice(0, 100), slice(100, 300)):
        bank.update(outputs[rows], labels[rows])
    assert made == []  # not for every batch of a stream
    first = bank.distance(outputs, "a")
    for _ in range(3):
        assert torch.equal(bank.distance(outputs, "a"), first)
        bank.distance(outputs, "b")
    assert made == [3, 5]


def test_a_loaded_bank_is_ready(made: list[int]) -> None:
    outputs, labels = stream(300)
    bank = Bank(["a", "b"]).update(outputs, labels)
    loaded = Bank(["a", "b"]).load_state(bank.state())
    assert made == [3, 5]
    assert loaded.neighbour == bank.neighbour
    assert sorted(loaded.state()) == ["counts", "labels", "sampling_keys", "unit.0", "unit.1"]
    loaded.distance(outputs, "a")
    assert made == [3, 5]
    copied = pickle.loads(pickle.dumps(loaded))
    assert torch.equal(copied.distance(outputs, "b"), bank.distance(outputs, "b"))


def test_after_an_update_the_new_rows_are_searched() -> None:
    outputs, labels = stream(600)
    bank = Bank(["a"]).update(outputs[:200], labels[:200])
    bank.distance(outputs, "a")
    bank.update(outputs[200:], labels[200:])
    whole = Bank(["a"]).update(outputs, labels)
    assert bank.neighbour == whole.neighbour == 3
    assert torch.equal(bank.distance(outputs, "a"), whole.distance(outputs, "a"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "labels",
            torch.tensor([0, 1, 2**29]),
            "its tensor labels should hold numbers from 0 to 2",
        ),
        ("labels", torch.tensor([[0, 1, 2]]), "its tensor labels should be int64 of shape"),
        (
            "sampling_keys",
            torch.tensor([0.1, 0.2, -0.1]).double(),
            "its tensor sampling_keys should hold finite numbers from 0.0 to 1.0",
        ),
        ("counts", torch.tensor([3, 2, 9]), "a sample of 2 images with 3 of each class at most"),
        ("counts", torch.tensor([3, 9, 2]), "with 1 of each class at most, got 3 images with 2"),
        (
            "unit.0",
            torch.eye(3)[:2],
            r"its tensor unit.0 should be float32 of shape \(3, features\)",
        ),
        ("unit.0", torch.eye(3) * 1.001, "unit.0 should hold rows of length 1, got one of 1.001"),
        (
            "unit.0",
            torch.diag(torch.tensor([1, 1.002, 1])),
            "unit.0 should hold rows of length 1, got one of 1.002",
        ),
        ("counts", torch.tensor([MOST + 1, 9, 9]), f"at most 1,048,576 classes, got {MOST + 1}"),
        ("unit.1", torch.eye(3), "unknown names: unit.1"),
    ],
)
def test_a_forged_state_is_refused_and_changes_nothing(
    name: str, value: torch.Tensor, message: str
) -> None:
    good = {
        "labels": torch.tensor([0, 1, 1]),
        "sampling_keys": torch.tensor([0.1, 0.2, 0.3]).double(),
        "counts": torch.tensor([3, 9, 9]),
        "unit.0": torch.cat([torch.eye(3)[:2], torch.zeros(1, 3)]),
    }
    bank = Bank(["z"]).load_state(good)
    with pytest.raises(ValueError, match=message):
        bank.load_state({**good, name: value})
    assert all(torch.equal(bank.state()[key], tensor) for key, tensor in good.items())


def test_the_smallest_and_the_widest_bank_can_be_loaded() -> None:
    one = {
        "labels": torch.tensor([0]),
        "sampling_keys": torch.tensor([0.1]).double(),
        "counts": torch.tensor([1, 1, 1]),
        "unit.0": torch.ones(1, 1),
    }
    assert len(Bank(["z"]).load_state(one)) == 1
    assert Bank(["z"]).load_state({**one, "counts": torch.tensor([MOST, 1, 1])}).num_classes == MOST


def test_a_bank_may_have_just_as_many_rows_as_are_searched_for() -> None:
    tensors = Tensors.of({})
    check_enough_rows(tensors, torch.eye(3), 3)
    with pytest.raises(ValueError, match="at least 4 rows, got 3"):
        check_enough_rows(tensors, torch.eye(3), 4)


# -- the images behind the rows ----------------------------------------------------------------


def test_kept_rows_know_their_place_in_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goen.detectors._bank._KEYS_AT_ONCE", 128)  # found in several portions
    outputs, labels = stream(500)
    bank = Bank(["a", "b"], 60).update(outputs[:200], labels[:200])
    assert int(bank.numbers.max()) < 200
    bank.update(outputs[200:], labels[200:])
    again = Bank(["a", "b"]).load_state(bank.state())
    for one in (bank, again):
        assert len(one) == 60 == len(one.numbers.unique())
        assert one.num_seen == 500
        for layer in ("a", "b"):
            expected = unit(outputs.features[layer])[one.numbers].float()
            assert torch.allclose(one.unit[layer], expected)
        assert torch.equal(one.state()["labels"], labels[one.numbers])
    assert int(bank.numbers.max()) >= 200


def test_the_nearest_images_are_those_of_sklearn_by_number() -> None:
    outputs, labels = stream(900)
    bank = Bank(["a", "b"], 300).update(outputs, labels)
    probe, _ = stream(40, seed=1)
    rows = unit(outputs.features["b"])[bank.numbers].numpy()
    search = NearestNeighbors(n_neighbors=3).fit(rows)
    distances, near = search.kneighbors(unit(probe.features["b"]).numpy())
    found = bank.nearest(probe, "b", 3)
    assert np.allclose(found.distances, distances, atol=1e-6)
    assert torch.equal(found.numbers, bank.numbers[torch.from_numpy(near)])
    assert torch.equal(found.labels, labels[found.numbers])


def test_an_image_of_the_bank_is_its_own_nearest_and_few_images_are_all_there_are() -> None:
    outputs, labels = stream(5)
    bank = Bank(["a", "b"]).update(outputs, labels)
    found = bank.nearest(outputs, "a", 8)
    assert found.numbers.shape == (5, 5)
    assert found.numbers[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert found.distances[:, 0].max() < 1e-3 < found.distances[:, 1].min()


def test_random_numbers_of_no_stream_have_no_places() -> None:
    outputs, labels = stream(50)
    state = Bank(["a", "b"]).update(outputs, labels).state()
    sampling_keys = state["sampling_keys"].clone()
    sampling_keys[7] = 0.123456
    forged = Bank(["a", "b"]).load_state({**state, "sampling_keys": sampling_keys})
    with pytest.raises(ArtifactError, match="not those of goen"):
        forged.nearest(outputs, "a", 1)
    whole = {**state, "counts": torch.tensor([CLASSES, 2**62, 5000])}
    assert Bank(["a", "b"]).load_state(whole).numbers.max() == 49
