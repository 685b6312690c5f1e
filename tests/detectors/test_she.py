import numpy as np
import pytest
import torch

from goen.detectors import SHE
from goen.errors import FitError, UsageError
from goen.outputs import Outputs
from tests.detectors.linear import labels, some


@pytest.mark.parametrize("similarity", ["inner_product", "cosine"])
def test_it_is_the_similarity_to_the_mean_of_correct_rows(similarity: str) -> None:
    train, other = some(90), some(30, 1)
    she = SHE(similarity=similarity).fit(train, labels(90))  # type: ignore[arg-type]
    z, predicted = train.features["z"].numpy(), train.logits.argmax(1).numpy()
    means = {c: z[(predicted == c) & (labels(90).numpy() == c)].mean(0) for c in range(3)}
    expected = []
    for row, at in zip(other.features["z"].numpy(), other.logits.argmax(1).tolist(), strict=True):
        product = sum(a * b for a, b in zip(row, means[at], strict=True))
        if similarity == "cosine":
            product /= np.sqrt((row**2).sum() * (means[at] ** 2).sum())
        expected.append(-product)
    assert np.allclose(she.score(other).numpy(), expected, rtol=1e-10)


def test_by_hand_with_a_class_that_is_never_right() -> None:
    # Class 0: (2, 0) and (4, 2), mean (3, 1). Class 1: its one image is taken for class 0.
    z = torch.tensor([[2.0, 0.0], [4.0, 2.0], [9.0, 9.0]])
    train = Outputs(torch.tensor([[1.0, 0.0]]).repeat(3, 1), {"z": z})
    query = Outputs(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), {"z": torch.tensor([[1.0, 5.0]] * 2)})
    assert SHE().fit(train, torch.tensor([0, 0, 1])).score(query).tolist() == [-8, 0]
    cosine = SHE(similarity="cosine").fit(train, torch.tensor([0, 0, 1]))
    assert cosine.score(query).tolist() == pytest.approx([-8 / np.sqrt(26 * 10), 0])


def test_no_correct_image_at_all_and_another_similarity_are_refused() -> None:
    train = Outputs(torch.tensor([[1.0, 0.0]] * 3), {"z": torch.ones(3, 2)})
    with pytest.raises(FitError, match="None of the 3 training images is classified correctly"):
        SHE().fit(train, torch.ones(3).long())
    with pytest.raises(UsageError, match=r"Unknown similarity 'cosinus'\. Did you mean 'cosine'"):
        SHE(similarity="cosinus")  # type: ignore[arg-type]
