import pickle

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from goen.detectors import KNN, knn
from goen.detectors._bank import sample_rows
from goen.errors import FitError, UsageError
from goen.functional.neighbours import NeighbourIndex
from goen.outputs import Outputs
from tests.detectors.saving import reloaded


def of(**features: torch.Tensor) -> Outputs:
    return Outputs(torch.zeros(len(next(iter(features.values()))), 2), features)


def random(rows: int, dim: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def fitted(k: int, feature: str | tuple[str, ...] = "z", **features: torch.Tensor) -> KNN:
    outputs = of(**features)
    return KNN(k=k, feature=feature).fit(outputs, torch.zeros(len(outputs), dtype=torch.int64))


@pytest.mark.parametrize("k", [1, 50, 700])
def test_it_is_scikit_learns_cosine_distance(k: int) -> None:
    z, q = random(700, 20, 0), 3 * random(60, 20, 1)
    search = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute")
    expected = search.fit(z.double().numpy()).kneighbors(q.double().numpy())[0][:, -1]
    assert np.allclose(fitted(k, z=z).score(of(z=q)).numpy(), expected, rtol=1e-6)


def test_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [5.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    query = of(z=torch.tensor([[3.0, 4.0]]))
    for k, expected in [(1, 0.2), (2, 0.4), (3, 0.4), (4, 1.6)]:
        assert fitted(k, z=z).score(query).item() == pytest.approx(expected, abs=1e-7)


def test_several_features_give_the_mean_of_their_distances() -> None:
    names = ("texture", "z")
    train = {"texture": 100 * random(80, 5, 0), "z": random(80, 9, 1)}
    other = {"texture": random(30, 5, 2), "z": random(30, 9, 3)}
    mean = sum(cdist(other[name].double(), train[name].double(), "cosine") for name in names) / 2
    expected = np.sort(mean, axis=1)[:, 6]
    score = fitted(7, names, **train).score(of(**other))
    assert np.allclose(score.numpy(), expected, rtol=1e-6)
    assert torch.equal(
        fitted(7, ("z",), **train).score(of(**other)), fitted(7, **train).score(of(**other))
    )


def test_of_several_features_a_zero_one_is_at_distance_one() -> None:
    z = torch.tensor([[1.0, 0.0]])
    detector = fitted(1, ("texture", "z"), texture=z, z=z)
    score = detector.score(of(texture=torch.zeros(1, 2), z=z))
    assert score.item() == pytest.approx(0.5)


def test_the_length_of_a_feature_does_not_matter() -> None:
    z, q = random(100, 8, 0), random(20, 8, 1)
    score = fitted(5, z=z).score(of(z=q))
    assert torch.equal(fitted(5, z=z * 2**30).score(of(z=q * 2**-60)), score)


def test_a_zero_row_has_no_direction() -> None:
    z = torch.cat([torch.zeros(1, 4), random(9, 4, 0)])
    assert fitted(3, z=z).score(of(z=torch.zeros(2, 4))).tolist() == [1, 1]
    assert fitted(10, z=-z.abs()).score(of(z=z.abs()[1:])).min() >= 1


def test_near_duplicates_do_not_tie() -> None:
    z = torch.ones(60, 16)
    query = torch.ones(4, 16)
    query[:, 0] += torch.tensor([0.0, 1e-5, 2e-5, 3e-5])
    score = fitted(50, z=z).score(of(z=query))
    assert score[0] == 0
    assert (score.diff() > 0).all()
    assert score[3].item() == pytest.approx(15 / 16 / 16 * 9e-10 / 2, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_training_row_is_found_again(dtype: torch.dtype) -> None:
    z = random(500, 32, 0).to(dtype)
    assert fitted(1, z=z).score(of(z=z[40:60])).abs().max() == 0


def test_more_neighbours_than_rows_are_refused() -> None:
    with pytest.raises(FitError, match="k = 50 needs as many training rows, and there are 49"):
        fitted(50, z=random(49, 4, 0))
    with pytest.raises(UsageError, match="at least 1; got 0"):
        KNN(k=0)
    with pytest.raises(UsageError, match="at least one feature"):
        KNN(feature=())
    for k in (5.5, "5"):
        with pytest.raises(UsageError, match=f"k must be an integer, at least 1; got {k!r}"):
            KNN(k=k)  # type: ignore[arg-type]


def test_rows_that_are_not_finite_are_refused() -> None:
    z = random(20, 4, 0)
    z[3, 1] = torch.nan
    with pytest.raises(FitError, match="1 of 20"):
        fitted(5, z=z)
    with pytest.raises(UsageError, match="NaN"):
        fitted(5, z=random(20, 4, 1)).score(of(z=z))


def test_the_state_is_the_bank_in_float32() -> None:
    detector = fitted(5, z=random(100, 8, 0).double())
    (bank,) = detector.state().values()
    assert bank.dtype == torch.float32
    assert torch.allclose(bank.norm(dim=1), torch.ones(100))
    other = of(z=random(10, 8, 1))
    assert torch.equal(reloaded(detector).score(other), detector.score(other))


def test_the_bank_is_prepared_when_fitted_or_loaded_and_not_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def make(bank: torch.Tensor) -> NeighbourIndex:
        made.append(len(bank))
        return NeighbourIndex(bank)

    monkeypatch.setattr(knn, "NeighbourIndex", make)
    detector = fitted(5, z=1 + 0.01 * random(100, 8, 0))  # in a narrow cone
    other = of(z=random(10, 8, 1))
    first = detector.score(other)
    assert torch.equal(detector.score(other), first)
    assert made == [100]
    loaded = reloaded(detector)
    assert made == [100, 100]
    assert torch.equal(loaded.score(other), first)
    assert torch.equal(pickle.loads(pickle.dumps(loaded)).score(other), first)
    again = of(z=random(40, 8, 2))
    detector.fit(again, torch.zeros(40, dtype=torch.int64))
    assert torch.equal(detector.score(other), fitted(5, z=again.features["z"]).score(other))


def test_a_forged_bank_is_refused() -> None:
    detector = fitted(5, z=random(100, 8, 0))
    bank = detector.state()["bank"]
    for wrong, message in (
        (bank.double(), r"bank should be float32 of shape \(rows, 8\)"),
        (bank[:, 1:], r"bank should be float32 of shape \(rows, 8\)"),
        (bank * torch.nan, "bank should hold finite"),
        (bank[:4], "bank should have at least 5 rows, got 4"),
        (bank * 1.001, r"bank should hold rows no longer than 1, got one of 1\.001"),
    ):
        with pytest.raises(ValueError, match=message):
            reloaded(detector, {"bank": wrong})
    with pytest.raises(ValueError, match="unknown names: labels"):
        reloaded(detector, {"labels": bank})


@pytest.mark.parametrize(
    ("counts", "k"), [((90, 90), 10), ((4500, 4500), 50), ((450, 449, 9), 50), ((3, 3), 1)]
)
def test_the_default_neighbour_follows_the_median_class(counts: tuple[int, ...], k: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    z = random(len(labels), 4, 0)
    outputs = Outputs(torch.zeros(len(z), len(counts)), {"z": z})
    detector, query = KNN().fit(outputs, labels), of(z=random(20, 4, 1))
    query = Outputs(torch.zeros(20, len(counts)), query.features)
    by_name = KNN(k=k).fit(outputs, labels)
    assert torch.equal(detector.score(query), by_name.score(query))
    assert torch.equal(reloaded(detector).score(query), detector.score(query))


def test_a_neighbour_that_no_bank_has_is_not_loaded() -> None:
    z = random(20, 3, 0)
    detector = KNN().fit(of(z=z), torch.arange(20) % 2)
    state = detector.state()
    assert state["neighbour"].item() == 1
    for forged, message in ((21, "at least 21 rows, got 20"), (0, "neighbour")):
        forged_state = {**state, "neighbour": torch.tensor(forged)}
        with pytest.raises(ValueError, match=message):
            KNN().load_state(forged_state, {"z": 3}, 2)
    with pytest.raises(ValueError, match="neighbour"):
        KNN().load_state({"bank": state["bank"]}, {"z": 3}, 2)


def test_of_more_rows_a_sample_of_each_class_is_searched() -> None:
    outputs, labels = of(z=random(90, 6, 0)), torch.arange(90) % 2
    sampled = KNN(rows=40).fit(outputs, labels)
    kept = sample_rows(labels, 2, 40)
    assert len(kept) == 40
    assert torch.bincount(labels[kept]).tolist() == [20, 20]
    own = KNN().fit(outputs[kept], labels[kept])
    query = of(z=random(9, 6, 1))
    assert torch.equal(sampled.score(query), own.score(query))
    assert int(sampled.neighbour_) == 2  # a ninth of 20
    assert torch.equal(reloaded(sampled).score(query), own.score(query))
    assert len(KNN(rows=90).fit(outputs, labels).bank_) == 90
    with pytest.raises(FitError, match="there are 40"):
        KNN(k=41, rows=40).fit(outputs, labels)
