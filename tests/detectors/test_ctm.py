import numpy as np
import torch
from scipy.spatial.distance import cosine

from goen.detectors import CTM
from goen.outputs import Outputs
from tests.detectors.linear import labels, some


def test_it_is_scipys_cosine_to_the_nearest_class_mean() -> None:
    train, other = some(60), some(30, 1)
    ctm = CTM().fit(train, labels(60))
    z = train.features["z"].numpy()
    means = [z[labels(60).numpy() == c].mean(0) for c in range(3)]
    expected = [min(cosine(row, mean) for mean in means) - 1 for row in other.features["z"].numpy()]
    assert np.allclose(ctm.score(other).numpy(), expected, rtol=1e-10)


def test_by_hand() -> None:
    # Class 0 has the mean (3, 4), whose direction is (0.6, 0.8); class 1 has no images.
    z = torch.tensor([[6.0, 0.0], [0.0, 8.0]])
    ctm = CTM().fit(Outputs(torch.zeros(2, 2), {"z": z}), torch.tensor([0, 0]))
    query = torch.tensor([[5.0, 0.0], [0.0, 0.0], [-3.0, -4.0]])
    scores = ctm.score(Outputs(torch.zeros(3, 2), {"z": query}))
    assert scores.tolist() == [-0.6, 0, 1]
