"""Rows of features as a set of a protocol."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from goen.data.feature_set import FeatureSet
from goen.data.imageset import require_disjoint
from goen.data.inputs import as_stream
from goen.errors import LeakError, UsageError


def rows(count: int, seed: int, name: str = "rows") -> FeatureSet:
    rng = np.random.default_rng(seed)
    arrays: dict[str, NDArray[Any]] = {
        "z": rng.normal(size=(count, 3)).astype(np.float32),
        "logits": np.eye(count)[:, :2],
    }
    return FeatureSet.of(name, arrays, np.arange(count) % 2, ("a", "b"))


def test_a_split_has_the_rows_of_its_images() -> None:
    whole = rows(10, 0)
    parts = whole.split({"one": 6, "two": 4}, 7)
    order = np.random.RandomState(7).permutation(10)
    np.testing.assert_array_equal(
        parts["two"].read_inputs(slice(None))["z"], whole.arrays["z"][order[6:]]
    )
    assert parts["two"].labels.tolist() == (order[6:] % 2).tolist()
    batches = list(as_stream(parts["one"], "one", 4))
    assert [len(labels) for _, labels in batches if labels is not None] == [4, 2]
    np.testing.assert_array_equal(batches[1][0]["z"], whole.arrays["z"][order[4:6]])  # type: ignore[index,call-overload]


def test_its_identity_is_its_content() -> None:
    assert rows(5, 0).fingerprint == rows(5, 0, "other name").fingerprint
    assert rows(5, 0).fingerprint != rows(5, 1).fingerprint
    with pytest.raises(LeakError, match="shares 2 of its 2 images"):
        require_disjoint(rows(5, 0).take([1, 2]), rows(5, 0))


def test_without_labels_there_is_one_class() -> None:
    found = FeatureSet.of("ood", {"z": np.zeros((2, 3), np.float32)}, None, ("a", "b"))
    assert found.classes == ("ood",)
    assert found.labels.tolist() == [0, 0]
    assert repr(found) == "FeatureSet(ood: 2 rows of z)"


def test_there_are_no_pixels_and_the_arrays_belong_together() -> None:
    with pytest.raises(UsageError, match="rows holds features: there are no images"):
        rows(3, 0).read()
    with pytest.raises(UsageError, match="as many rows as the others"):
        FeatureSet.of("x", {"z": np.zeros((2, 3)), "logits": np.zeros((3, 2))}, None, ())
