import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from goen.detectors import NECO
from goen.errors import FitError, UsageError
from goen.outputs import Outputs
from tests.detectors.linear import labels, some


@pytest.mark.parametrize("max_logit", [True, False])
@pytest.mark.parametrize("variance", [0.5, 0.9])
def test_it_is_the_share_within_scikit_learns_directions(variance: float, max_logit: bool) -> None:
    train, other = some(60), some(30, 1)
    neco = NECO(variance=variance, max_logit=max_logit).fit(train, labels(60))
    scaler = StandardScaler().fit(train.features["z"].numpy())
    pca = PCA(variance, svd_solver="full").fit(scaler.transform(train.features["z"].numpy()))
    standard = scaler.transform(other.features["z"].numpy())
    share = np.linalg.norm(pca.transform(standard), axis=1) / np.linalg.norm(standard, axis=1)
    largest = other.logits.numpy().max(axis=1) if max_logit else 1
    assert neco.directions_.shape == (8, pca.n_components_)
    assert np.allclose(neco.score(other).numpy(), -share * largest, rtol=1e-8)


def test_by_hand() -> None:
    # Two equal features and one that never varies: one direction, (1, 1, 0) / sqrt(2).
    z = torch.tensor([[1.0, 1.0, 5.0], [-1.0, -1.0, 5.0]])
    neco = NECO().fit(Outputs(torch.zeros(2, 1), {"z": z}), torch.zeros(2).long())
    query = torch.tensor([[3.0, 3.0, 5.0], [3.0, -3.0, 5.0], [4.0, 0.0, 5.0], [0.0, 0.0, 5.0]])
    scores = neco.score(Outputs(torch.full((4, 1), 2.0), {"z": query}))
    assert scores.tolist() == pytest.approx([-2, 0, -(2**0.5), 0], abs=1e-12)


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="variance must be a number, above 0 and at most 1"):
        NECO(variance=1.5)
    with pytest.raises(FitError, match="All 4 training rows are equal"):
        NECO().fit(
            Outputs(torch.zeros(4, 1), {"z": torch.full((4, 3), 0.1)}), torch.zeros(4).long()
        )
