"""The axes of the feature map and the AUROC by epoch against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

from goen.data import ImageSet
from goen.detectors import Energy, Goen
from goen.detectors.calibration_head import HeadConfig
from goen.functional.gaussian import ClassStatistics
from goen.outputs import Outputs
from goen.studies.gate_evaluation import _principal_axes, find_mistakes, head_epochs


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


def images(count: int, shift: float, seed: int) -> Outputs:
    """Two classes on the first two axes, moved along the third."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.eye(4)[torch.arange(count) % 2] + 0.3 * torch.randn(count, 4, generator=draw)
    return Outputs(4 * z[:, :2], {"z": z + shift * torch.eye(4)[2]})


def calibrated() -> Goen:
    head = HeadConfig(epochs=5, batch_size=16)
    labels = torch.arange(200) % 2
    ood = {"seen": images(80, 1.0, 2)}
    return Goen(head=head).fit(images(200, 0.0, 0), labels, held_out=images(80, 0.0, 1), ood=ood)


def test_the_auroc_of_each_epoch_is_that_of_its_head() -> None:
    detector = calibrated()
    sets = {"test": images(60, 0.0, 3), "near": images(50, 0.3, 4), "far": images(40, 1.0, 5)}
    rows = head_epochs(detector, sets)
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3, 4]
    for row, epoch in zip(rows, detector.head_epochs_, strict=True):
        kept = (row["id_score"], row["ood_score"], row["gap"])
        assert kept == (epoch.id_score, epoch.ood_score, epoch.gap)
        for name in ("near", "far"):
            cues = torch.cat([detector.cues(sets["test"]), detector.cues(sets[name])])
            is_ood = np.arange(len(cues)) >= 60
            with torch.no_grad():
                expected = roc_auc_score(is_ood, epoch.head(cues.float()).numpy())
            assert row[f"auroc/{name}"] == pytest.approx(expected)
    assert len({row["auroc/near"] for row in rows}) > 1


def test_measuring_every_epoch_leaves_the_head_as_it_was_fitted() -> None:
    detector, alone = calibrated(), calibrated()
    head_epochs(detector, {"test": images(60, 0.0, 3), "near": images(50, 0.3, 4)})
    ours, theirs = detector.state(), alone.state()
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("head.") for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_without_a_head_there_are_no_epochs() -> None:
    plain = Goen().fit(images(200, 0.0, 0), torch.arange(200) % 2)
    assert head_epochs(plain, {"test": images(60, 0.0, 3)}) == []
    assert head_epochs(Energy(), {"test": images(60, 0.0, 3)}) == []


def test_mistakes_are_the_most_confident_errors_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.arange(6, dtype=np.uint8).repeat(3 * 4 * 2).reshape(6, 3, 4, 2)
    images = ImageSet("six", pixels, np.zeros(6, np.int64), ("a",))
    p_value = np.array([0.2, 0.04, 0.9, 0.01, 0.5, 0.04])
    is_ood = np.array([False, True, False, True, False, True])
    scores = {"is_ood": is_ood, "p_value": p_value}
    flagged = find_mistakes("test", images, scores)
    assert [*flagged.rows] == [3, 1, 5]
    assert np.array_equal(flagged.images, pixels[[3, 1, 5]])
    passed = find_mistakes("noise", images, scores)
    assert [*passed.rows] == [2, 4, 0]
    assert np.array_equal(passed.images, pixels[[2, 4, 0]])
    monkeypatch.setattr("goen.studies.gate_evaluation._MOST_MISTAKES", 2)
    assert [*find_mistakes("noise", images, scores).rows] == [2, 4]
