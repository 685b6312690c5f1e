import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from torch.utils._python_dispatch import TorchDispatchMode

from goen.errors import UsageError
from goen.functional import neighbours
from goen.functional.cues import normalise
from goen.functional.neighbours import NeighbourIndex, most_similar
from tests.functional.tracing import traced


def unit(rows: int, dim: int, seed: int) -> torch.Tensor:
    return normalise(torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)))


def kth_distance(queries: torch.Tensor, bank: torch.Tensor, k: int) -> torch.Tensor:
    return NeighbourIndex(bank).kth_distance(queries, k)


def slow(queries: torch.Tensor, bank: torch.Tensor, k: int) -> np.ndarray:
    out = []
    for query in queries.double().numpy():
        distances = [1 - query @ row for row in bank.double().numpy()]
        out.append(sorted(distances)[k - 1])
    return np.array(out)


@pytest.mark.parametrize("few", [0, 2**17])
@pytest.mark.parametrize("k", [1, 2, 5, 50, 1999, 2000])
def test_it_is_scikit_learns(k: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_FEW", few)
    queries, bank = unit(40, 12, 0), unit(2000, 12, 1)
    search = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(bank.numpy())
    expected = search.kneighbors(queries.numpy())[0][:, -1]
    found = kth_distance(queries, bank, k)
    assert found.dtype == torch.float64
    assert np.allclose(found.numpy(), expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_it_is_the_slow_search_whatever_the_sizes(data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(1, 200))
    k = data.draw(st.integers(1, num_rows))
    seed = data.draw(st.integers(0, 1000))
    bank, queries = unit(num_rows, 3, seed), unit(data.draw(st.integers(0, 6)), 3, seed + 1)
    # Some rows are there several times.
    bank = bank[torch.randint(0, num_rows, (num_rows,), generator=torch.manual_seed(seed))]
    found = kth_distance(queries, bank, k).numpy()
    assert np.allclose(found, slow(queries, bank, k), rtol=1e-9, atol=1e-12)


def test_by_hand() -> None:
    bank = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]])
    query = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    for k, expected in enumerate([(0, 1), (0.4, 1), (1, 1.8), (2, 2)], start=1):
        assert np.allclose(kth_distance(query, bank, k).numpy(), expected, atol=1e-7)


def test_near_duplicates_are_told_apart() -> None:
    # At angles of a few millionths: in float32 every similarity is exactly 1.
    angle = torch.tensor([5, 1, 3, 7, 2, 6, 4, 8], dtype=torch.float64) * 1e-6
    bank = torch.cat([torch.stack([angle.cos(), angle.sin()], 1), -unit(300, 2, 0).abs()])
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    for k in range(1, 9):
        expected = 2 * np.sin(k * 1e-6 / 2) ** 2
        found = kth_distance(query, bank, k).item()
        assert found == pytest.approx(expected, rel=1e-6, abs=0)


def test_the_middle_of_seventeen_near_duplicates_is_found() -> None:
    angle = torch.arange(1, 18, dtype=torch.float64) * 1e-6
    for seed in range(20):
        order = torch.randperm(17, generator=torch.manual_seed(seed))
        bank = torch.stack([angle[order].cos(), angle[order].sin()], 1)
        found = kth_distance(torch.tensor([[1.0, 0.0]]), bank, 9).item()
        assert found == pytest.approx(2 * np.sin(9e-6 / 2) ** 2, rel=1e-6, abs=0)


@pytest.mark.parametrize("spread", [1e-2, 3e-4, 1e-5])
@pytest.mark.parametrize("k", [1, 12, 100, 101, 295])
def test_in_several_narrow_clusters_the_kth_is_exact(spread: float, k: int) -> None:
    # As the last layer of a network that was trained for long: rows of a class differ by less than
    # float32 similarities can tell, and the classes' mean is not near any of them.
    centres = unit(3, 48, 0).double()
    bank, queries = (
        normalise(centres.repeat(count, 1) + spread * unit(3 * count, 48, seed).double())
        for count, seed in ((100, 1), (9, 2))
    )
    queries = torch.cat([queries, bank[:3], unit(4, 48, 3).double()])
    apart = (queries[:, None] - bank).square().sum(dim=2) / 2
    expected, order = apart.sort(dim=1)
    index = NeighbourIndex(bank)
    assert torch.allclose(index.kth_distance(queries, k), expected[:, k - 1], rtol=1e-9, atol=1e-30)
    distance, rows = index.nearest(queries, k)
    assert torch.allclose(distance, expected[:, :k], rtol=1e-9, atol=1e-30)
    assert torch.equal(rows, order[:, :k])


@pytest.mark.parametrize("spread", [0.3, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("k", [1, 40, 900])
def test_in_a_narrow_cone_neighbours_are_found_among_rows_that_float32_cannot_tell_apart(
    spread: float, k: int
) -> None:
    # A large common part, as after a sigmoid: similarities differ by the square of the spread.
    common = unit(1, 64, 0)
    bank = normalise(common + spread * unit(2_000, 64, 1))
    near, far = normalise(common + spread * unit(30, 64, 2)), unit(30, 64, 3)
    for queries in (near, far, bank[:20], torch.zeros(1, 64)):
        found = kth_distance(queries, bank, k)
        apart = queries.double()[:, None] - bank.double()
        expected = apart.square().sum(dim=2).sort(dim=1).values[:, k - 1] / 2
        expected = expected + (queries.double().square().sum(dim=1) < 0.5) / 2
        assert torch.allclose(found, expected, rtol=1e-4, atol=0)


def test_rows_of_zeros_in_a_narrow_cone_are_at_a_right_angle() -> None:
    cone = normalise(unit(1, 8, 0) + 1e-3 * unit(100, 8, 1))
    bank = torch.cat([cone, torch.zeros(2, 8)])
    found = [kth_distance(cone[:1], bank, k).item() for k in (1, 100, 101, 102)]
    assert found[0] == pytest.approx(0, abs=1e-12)
    assert 0 < found[1] < 1e-5
    assert found[2:] == pytest.approx([1, 1], abs=1e-6)


def test_rows_shorter_than_one_in_a_narrow_cone_keep_their_products() -> None:
    # As of KNN on two features, of which one is zero for some images: 1 - a.b, not the difference.
    cone = normalise(unit(1, 16, 0) + 1e-2 * unit(200, 16, 1))
    bank = cone.clone()
    bank[::20, :8] = 0
    bank[1::20] *= 0.9
    assert float(bank.mean(dim=0).square().sum()) > 0.9
    for k in (1, 150, 180, 185, 191, 200):
        for queries in (cone[::40], bank[:3], unit(20, 16, 2)):
            found = kth_distance(queries, bank, k).numpy()
            assert np.allclose(found, slow(queries, bank, k), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("k", [1, 5, 2500])
def test_wide_features_of_a_sigmoid(k: int) -> None:
    g = torch.Generator().manual_seed(0)
    rows = normalise(torch.sigmoid(torch.randn(2600, 2048, generator=g) / 10)).float()
    # Duplicates of a query: ties, one more than are measured again on one side.
    bank, queries = torch.cat([rows[:2590], rows[2590:2591].repeat(9, 1)]), rows[2588:]
    assert float(bank.mean(dim=0).square().sum()) > 0.99
    apart = queries.double()[:, None] - bank.double()
    expected = apart.square_().sum(dim=2).sort(dim=1).values[:, k - 1] / 2
    assert torch.allclose(kth_distance(queries, bank, k), expected, rtol=1e-9, atol=1e-15)


def test_one_query_with_ties_does_not_disturb_the_others() -> None:
    bank = torch.cat([unit(300, 8, 0), unit(1, 8, 1).repeat(5, 1)])
    queries = torch.cat([unit(20, 8, 2), bank[-1:], unit(20, 8, 3), torch.zeros(1, 8)])
    for k in (1, 3, 6):
        found = kth_distance(queries, bank, k)
        assert np.allclose(found.numpy(), slow(queries, bank, k), rtol=1e-9, atol=1e-12)
        assert torch.equal(found, torch.cat([kth_distance(q[None], bank, k) for q in queries]))


class WholeBankReads(TorchDispatchMode):
    """The operations that are given as many numbers as a bank has."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel = numel
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(isinstance(arg, torch.Tensor) and arg.numel() >= self.numel for arg in args):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("spread", [1e-3, 10.0])
def test_a_search_reads_the_whole_bank_in_one_product_alone(spread: float) -> None:
    bank = normalise(unit(1, 64, 0) + spread * unit(2000, 64, 1)).float()
    index = NeighbourIndex(bank)
    with WholeBankReads(bank.numel()) as reads:
        index.kth_distance(bank[:3].double(), 5)
    not_whole = {"detach", "slice", "t", "transpose", "new_empty", "index_select"}
    assert [name for name in reads.names if name not in not_whole] == ["addmm"]


@pytest.mark.parametrize(
    ("spread", "dtype", "held"),
    [(10.0, torch.float32, 1), (1e-3, torch.float32, 2), (10.0, torch.float64, 1.5)],
)
def test_the_rows_are_held_twice_only_where_they_must_be(
    spread: float, dtype: torch.dtype, held: float
) -> None:
    bank = normalise(unit(1, 64, 0) + spread * unit(1000, 64, 1)).to(dtype)
    index = NeighbourIndex(bank)
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in vars(index).values()
        if isinstance(value, torch.Tensor)
    }
    assert bank.untyped_storage().data_ptr() in storages
    assert sum(storages.values()) == pytest.approx(held * bank.nbytes, rel=0.1)


@pytest.mark.parametrize("spread", [1e-3, 10.0])
def test_a_copy_of_an_index_finds_the_same_and_is_pickled_as_its_rows(spread: float) -> None:
    bank = normalise(unit(1, 64, 0) + spread * unit(1000, 64, 1)).float()
    index, queries = NeighbourIndex(bank), unit(20, 64, 2)
    pickled = pickle.dumps(index)
    assert len(pickled) < bank.nbytes + 2000
    for other in (pickle.loads(pickled), copy.deepcopy(index), copy.copy(index)):
        assert len(other) == 1000
        assert torch.equal(other.kth_distance(queries, 7), index.kth_distance(queries, 7))


def test_threads_may_share_an_index() -> None:
    bank = normalise(unit(1, 64, 0) + 1e-2 * unit(1000, 64, 1)).float()
    index, kept = NeighbourIndex(bank), bank.clone()
    batches = [normalise(unit(1, 64, 0) + 1e-2 * unit(n, 64, n)) for n in range(1, 33)]
    alone = [index.kth_distance(batch, 20) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda batch: index.kth_distance(batch, 20), batches * 4))
    assert all(torch.equal(a, b) for a, b in zip(alone * 4, together, strict=True))
    assert torch.equal(bank, kept)


def test_what_rounding_puts_out_of_order_is_put_in_order() -> None:
    # In 512 dimensions the similarities of near-duplicates differ, but by float32's rounding alone.
    query = unit(1, 512, 0)
    size = torch.tensor([6, 2, 9, 4, 1, 8, 3, 7, 5], dtype=torch.float64)[:, None] * 1e-5
    bank = torch.cat([normalise(query + size * unit(9, 512, 1)), unit(500, 512, 2)])
    expected = ((bank - query).square().sum(dim=1) / 2).sort().values
    others = unit(20, 512, 3)  # of which nothing is out of order
    for k in range(1, 10):
        found = kth_distance(query, bank, k).item()
        assert found == pytest.approx(expected[k - 1].item(), rel=1e-9, abs=0)
        among = kth_distance(torch.cat([others, query]), bank, k)[-1].item()
        assert among == pytest.approx(found, rel=1e-12, abs=0)


def test_a_row_of_the_bank_is_at_distance_zero() -> None:
    bank = unit(500, 64, 3).float()
    assert kth_distance(bank[7:20], bank, 1).tolist() == [0.0] * 13


@pytest.mark.parametrize("narrow", [False, True])
def test_a_query_of_zeros_is_as_far_from_all_rows_and_asks_for_no_more_of_them(
    narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = unit(5000, 12, 0) + (10 if narrow else 0)
    index = NeighbourIndex(normalise(bank))
    asked: list[int] = []

    def watched(similarity: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(count)
        return most_similar(similarity, count)

    monkeypatch.setattr(neighbours, "most_similar", watched)
    distance, rows = index.nearest(torch.zeros(3, 12), 4)
    assert torch.equal(distance, torch.ones(3, 4, dtype=torch.float64))
    assert rows.tolist() == [[0, 1, 2, 3]] * 3
    assert torch.equal(index.kth_distance(torch.zeros(2, 12), 4), torch.ones(2).double())
    assert asked == [12, 12]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.3, 3e-2])
def test_a_bank_of_half_precision_is_searched_exactly(dtype: torch.dtype, spread: float) -> None:
    bank = normalise(unit(1, 64, 0) + spread * unit(500, 64, 1)).to(dtype)
    queries = normalise(unit(1, 64, 0) + spread * unit(20, 64, 2))
    products = 1 - queries.double() @ bank.double().T
    expected = products.sort(dim=1).values[:, 9]
    assert torch.allclose(kth_distance(queries, bank, 10), expected, rtol=0, atol=2e-6)


def test_duplicates_count_as_often_as_they_occur() -> None:
    bank = torch.eye(2).repeat_interleave(torch.tensor([60, 60]), dim=0)
    query = torch.tensor([[1.0, 0.0]])
    assert kth_distance(query, bank, 60).item() == 0
    assert kth_distance(query, bank, 61).item() == 1


def test_a_row_of_zeros_is_at_distance_one() -> None:
    bank = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [0.6, 0.8]])
    assert kth_distance(torch.zeros(1, 2), bank, 2).item() == 1
    assert kth_distance(torch.zeros(1, 2), torch.zeros(3, 2), 2).item() == 1
    assert kth_distance(torch.tensor([[1.0, 0.0]]), bank, 2).item() == 1


def test_rows_shorter_than_one_keep_their_products() -> None:
    # Half a vector is missing: 1 - a.b, not the squared difference.
    half = torch.tensor([[0.5**0.5, 0.0]])
    assert kth_distance(half, half, 1).item() == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_bank_may_have_any_precision(dtype: torch.dtype) -> None:
    queries, bank = unit(20, 32, 0), unit(3000, 32, 1).to(dtype)
    kept = bank.clone()
    found = kth_distance(queries, bank, 50).numpy()
    assert np.allclose(found, slow(queries, bank, 50), rtol=0, atol=1e-6)
    assert torch.equal(bank, kept)


def test_portions_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, bank = unit(33, 8, 0), unit(1001, 8, 1)
    whole = kth_distance(queries, bank, 10)
    for at_once in (1, 1001 * 7, 1001 * 32):
        monkeypatch.setattr(neighbours, "_SIMILARITIES", at_once)
        assert torch.equal(kth_distance(queries, bank, 10), whole)


def test_no_queries_no_distances() -> None:
    assert kth_distance(torch.zeros(0, 4), unit(9, 4, 0), 3).shape == (0,)


def test_queries_that_are_not_finite_are_refused() -> None:
    cone = normalise(unit(1, 4, 0) + 1e-3 * unit(9, 4, 1))
    for value in (torch.nan, torch.inf, -torch.inf):
        broken = unit(2, 4, 0)
        broken[1, 2] = value
        for bank in (unit(9, 4, 1), cone):
            with pytest.raises(UsageError, match="NaN or infinity"):
                kth_distance(broken, bank, 1)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("count", [1, 2, 7, 39, 40, 64, 640])
def test_the_most_similar_are_those_of_topk(
    count: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "_FEW", 10**9 if at_once else 0)
    # Small whole numbers, so that there are many ties.
    rows = torch.randint(0, 9, (30, 640), generator=torch.manual_seed(0)).float()
    values, found = most_similar(rows, count)
    assert torch.equal(values, rows.topk(count, dim=1).values)
    assert torch.equal(rows.gather(1, found), values)
    assert all(len(set(line)) == count for line in found.tolist())


def test_the_most_similar_may_share_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_FEW", 0)
    row = torch.zeros(1, 16 * 100)
    together = torch.arange(16) * 100 + 37
    row[0, together] = torch.arange(1.0, 17.0)
    assert most_similar(row, 16)[1][0].tolist() == together.flip(0).tolist()


# -- the nearest rows themselves -------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 50, 2000])
def test_the_nearest_rows_are_scikit_learns(count: int) -> None:
    queries, bank = unit(40, 12, 0), unit(2000, 12, 1)
    search = NearestNeighbors(n_neighbors=count, metric="cosine", algorithm="brute")
    distances, rows = search.fit(bank.double().numpy()).kneighbors(queries.double().numpy())
    found, near = NeighbourIndex(bank).nearest(queries, count)
    assert np.allclose(found.numpy(), distances, rtol=1e-9, atol=1e-12)
    assert (near.numpy() == rows).all()


def test_nearest_rows_by_hand() -> None:
    bank = torch.tensor([[-1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.0, 1.0]])
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found, near = NeighbourIndex(bank).nearest(queries, 3)
    # Of equal rows the first of the bank comes first.
    assert near.tolist() == [[2, 1, 3], [1, 3, 2]]
    assert np.allclose(found.numpy(), [[0.4, 1, 1], [0, 0, 0.2]], atol=1e-7)


def test_of_equal_rows_the_first_of_the_bank_come_first() -> None:
    bank = unit(400, 5, 0)
    places = torch.randperm(400, generator=torch.Generator().manual_seed(1))[:9]
    bank[places] = bank[0].clone()
    _, near = NeighbourIndex(bank).nearest(bank[:1], 5)
    assert near[0].tolist() == sorted({0, *places.tolist()})[:5]
    distance, near = NeighbourIndex(bank[:1].repeat(64, 1)).nearest(bank[:1], 5)
    assert near[0].tolist() == [0, 1, 2, 3, 4]
    assert not distance.any()


def test_the_last_of_the_nearest_is_the_kth_also_in_a_narrow_cone() -> None:
    bank = normalise(torch.tensor([[1.0, 0.0, 0.0]]) + 1e-4 * unit(700, 3, 0))
    queries = normalise(torch.tensor([[1.0, 0.0, 0.0]]) + 1e-4 * unit(9, 3, 1))
    found, near = NeighbourIndex(bank).nearest(queries, 7)
    for k in range(1, 8):
        assert torch.equal(found[:, k - 1], kth_distance(queries, bank, k))
    difference = queries[:, None].double() - bank[near].double()
    assert torch.allclose(found, difference.square().sum(2) / 2, rtol=1e-6, atol=0)


def test_portions_of_nearest_rows_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, bank = unit(50, 6, 0), unit(300, 6, 1)
    whole = NeighbourIndex(bank).nearest(queries, 4)
    monkeypatch.setattr(neighbours, "_SIMILARITIES", 7 * 300)
    parts = NeighbourIndex(bank).nearest(queries, 4)
    assert torch.equal(whole[1], parts[1])
    assert NeighbourIndex(bank).nearest(queries[:0], 4)[1].shape == (0, 4)


def tied(seed: int) -> torch.Tensor:
    """Rows of which many are the same."""
    rows = unit(20, 12, seed)
    return rows[torch.randint(0, 20, (300,), generator=torch.Generator().manual_seed(seed))]


def with_zeros(seed: int) -> torch.Tensor:
    rows = unit(300, 12, seed)
    rows[::7] = 0
    return rows


def cone(spread: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalise(1 + spread * torch.randn(300, 12, generator=generator, dtype=torch.float64))


BANKS = {
    "random": lambda seed: unit(300, 12, seed),
    "ties": tied,
    "zero rows": with_zeros,
    "cone of 1e-2": lambda seed: cone(1e-2, seed),
    "cone of 1e-4": lambda seed: cone(1e-4, seed),
    "shorter than one": lambda seed: 0.7 * unit(300, 12, seed),
}


@pytest.mark.parametrize("k", [1, 7, 300])
@pytest.mark.parametrize("rows", BANKS.values(), ids=BANKS.keys())
def test_the_traced_search_agrees_with_the_exact_one(
    rows: Callable[[int], torch.Tensor], k: int
) -> None:
    index = NeighbourIndex(rows(0))
    # Other queries, rows of the bank themselves, and nothing.
    queries = torch.cat([rows(1)[:50], rows(0)[:20], torch.zeros(2, 12, dtype=rows(0).dtype)])
    search = traced(lambda given: index.kth_distance(given, k), queries)
    exact = index.kth_distance(queries, k)
    for count in (len(queries), 1, 0):
        found = search(queries[:count])
        assert found.dtype == torch.float64
        # The product in float64 is good to 1e-16 of lengths of 1, however near the two are.
        assert torch.allclose(found, exact[:count], rtol=1e-9, atol=1e-14)
    assert torch.equal(index.kth_distance(queries, k), exact)  # the index is as it was
