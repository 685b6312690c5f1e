"""The axes of the feature map against scikit-learn."""

import numpy as np
import torch
from sklearn.decomposition import PCA

from goen.functional.gaussian import ClassStatistics
from goen.studies.evaluate import _principal_axes


def test_the_maps_axes_are_those_of_a_pca() -> None:
    rows = torch.randn(300, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = rows * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2, 0.1]) + 4
    statistics = ClassStatistics(3, 6).update(rows, torch.arange(300) % 3)
    centre, axes, share = _principal_axes(statistics)
    pca = PCA(2).fit(rows.numpy())
    points = ((rows - centre) @ axes).numpy()
    assert np.allclose(np.abs(points), np.abs(pca.transform(rows.numpy())))
    assert np.allclose(share, pca.explained_variance_ratio_)
    assert (axes.gather(0, axes.abs().argmax(0)[None]) > 0).all()
