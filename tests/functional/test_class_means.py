import numpy as np
import torch

from goen.functional.class_means import class_means, correct_classes, mean_row


def test_means_are_numpys_in_any_number_of_portions() -> None:
    rows = torch.randn(5_000, 3, generator=torch.manual_seed(0))
    classes = torch.arange(5_000) % 5 - 1
    means, counts = class_means(rows, classes, 5)
    for c in range(4):
        assert np.allclose(means[c], rows[classes == c].double().numpy().mean(0), rtol=1e-12)
    assert means[4].tolist() == [0, 0, 0]  # of a class without rows
    assert counts.tolist() == [1000] * 4 + [0]


def test_only_rows_classified_as_labelled_are_correct() -> None:
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 0.0]])
    assert correct_classes(logits, torch.tensor([0, 1, 1])).tolist() == [0, 1, -1]


def test_the_mean_of_equal_numbers_is_that_number() -> None:
    assert torch.equal(
        mean_row(torch.full((1_300, 2), 16_777_217 / 3)).float(), torch.full((2,), 16_777_217 / 3)
    )


def test_the_mean_row_is_that_of_numpy() -> None:
    rows = 1e4 + torch.randn(1_300, 3, generator=torch.Generator().manual_seed(0))
    expected = rows.double().numpy().mean(axis=0)
    assert np.allclose(mean_row(rows).numpy(), expected, rtol=1e-14)
