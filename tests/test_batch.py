"""Batches of one tensor, a tuple or a dict of them."""

import torch

from goen.batch import count_of, join_batches, map_parts, parts_of, take

X, Y = torch.arange(6).view(3, 2), torch.arange(3)


def test_parts_have_the_names_of_the_arguments() -> None:
    assert [*parts_of(X)] == [""]
    assert [*parts_of((X, Y))] == ["0", "1"]
    assert [*parts_of({"a": X, "b": Y})] == ["a", "b"]


def test_a_batch_keeps_its_form() -> None:
    doubled = map_parts(lambda part: part * 2, (X, Y))
    assert isinstance(doubled, tuple)
    assert torch.equal(doubled[1], Y * 2)
    named = map_parts(lambda part: part * 2, {"a": X})
    assert isinstance(named, dict)
    assert torch.equal(named["a"], X * 2)
    for batch in (X, (X, Y), {"a": X, "b": Y}):
        assert count_of(batch) == 3
        one, two = take(batch, slice(0, 1)), take(batch, slice(1, 3))
        assert type(one) is type(batch)
        again = join_batches([one, two])
        assert type(again) is type(batch)
        for name, part in parts_of(batch).items():
            assert torch.equal(parts_of(again)[name], part)
