"""Parts of a fit merge to the whole, and parts that do not belong together do not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from goen.errors import ArtifactError, UsageError
from goen.gate import PartialFit, merge, partial_fit, partial_fit_outputs

from ..own_model import LAYERS, digits, preprocess, trained
from .test_fit_outputs import LABELS, X
from .test_fit_parts import files, fit, part, parts


def test_merges_of_merges_in_any_order(tmp_path: Path) -> None:
    made = parts(7)
    tree = merge([made[4], merge([merge(made[:2]), made[6]]), merge([made[5], *made[2:4]])])
    assert tree.spans == ((0, len(digits().train)),)
    assert tree.describe() == {**digits().train.to_json()}
    whole = files(fit(digits().train, layers=LAYERS), tmp_path / "whole")
    assert files(fit(tree), tmp_path / "gate") == whole


def test_bytes_give_the_same_part(tmp_path: Path) -> None:
    whole = files(fit(digits().train, layers=LAYERS), tmp_path / "whole")
    read = merge(PartialFit.from_bytes(made.to_bytes()) for made in parts(2))
    assert files(fit(read), tmp_path / "gate") == whole
    assert read.bank.numbers.max() == len(digits().train) - 1
    features = partial_fit_outputs(X, LABELS, classes=list("abcde"), first_row=7)
    again = PartialFit.from_bytes(features.to_bytes())
    assert (again.spans, again.right, again.kind) == (features.spans, None, features.kind)
    assert torch.equal(again.sums["sums"], features.sums["sums"])
    assert np.array_equal(again.digests, features.digests)


def test_damaged_bytes_are_an_error() -> None:
    content = partial_fit_outputs(X[:50], None).to_bytes()
    nothing = (b"", b"x" * 99, (2).to_bytes(8, "little") + b"[]")
    for damaged in (*nothing, content[:-5], content.replace(b"layers", b"sreyal")):
        with pytest.raises(ArtifactError, match="not a part of a fit"):
            PartialFit.from_bytes(damaged)


@pytest.mark.parametrize("spans", [((0, 49),), ((50, 0),), ((0, 20), (10, 40)), ((0, 0), (0, 50))])
def test_spans_that_are_not_those_of_the_rows_are_an_error(
    spans: tuple[tuple[int, int], ...],
) -> None:
    forged = replace(partial_fit_outputs(X[:50], None), spans=spans)
    with pytest.raises(ArtifactError, match="its spans should be those of 50 rows, in order"):
        PartialFit.from_bytes(forged.to_bytes())


def test_what_does_not_belong_together_is_an_error() -> None:
    one, two = part(range(320)), part(range(320, 664))
    with pytest.raises(UsageError, match=r"Rows 0 to 319 of the training set are missing"):
        fit(two)
    with pytest.raises(UsageError, match=r"Rows 320 to 663 .* are in two parts"):
        merge([one, two, two])
    with pytest.raises(UsageError, match=r"Rows 0 to 319 .* are in two parts"):
        merge([one, part(range(0, 640))])
    with pytest.raises(UsageError, match="no parts"):
        merge([])
    with pytest.raises(UsageError, match="number of an image, from 0, got -1"):
        partial_fit(trained(), digits().train, first_row=-1, preprocess=preprocess)
    renamed = digits().train.take(range(320), "others")
    with pytest.raises(UsageError, match="one training set"):
        merge([partial_fit(trained(), renamed, layers=LAYERS, preprocess=preprocess), two])


def test_parts_of_another_network_are_an_error() -> None:
    one = part(range(320))
    for changes in ({"preprocess": None}, {"flip_averaging": True}, {"layers": ("late",)}):
        with pytest.raises(UsageError, match="another network"):
            merge([one, part(range(320, 664), **changes)])
    with pytest.raises(UsageError, match="another network"):
        fit(merge(parts(2)), preprocess=None)
    with pytest.raises(UsageError, match="measures late; the training images were read with early"):
        fit(merge(parts(2)), layers=("late",))


def test_a_part_says_what_it_is() -> None:
    made = merge([part(range(32)), part(range(64, 96))])
    assert repr(made).startswith("PartialFit(digits")
    assert "rows 0 to 31, 64 to 95" in repr(made)
    assert made.accuracy == pytest.approx(1.0, abs=0.2)
