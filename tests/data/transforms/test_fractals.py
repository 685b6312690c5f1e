import numpy as np
import pytest
import torch

from goen.data.transforms.fractals import _contractions, _drawn, _points, fractals


def test_the_same_numbers_give_the_same_images() -> None:
    once = fractals(3, 16, seed=1)
    assert torch.equal(once, fractals(3, 16, seed=1))
    assert not torch.equal(once, fractals(3, 16, seed=2))
    assert once.dtype == torch.uint8
    assert once.shape == (3, 3, 16, 16)


def test_a_seed_has_its_images() -> None:
    """Networks were trained with them."""
    means = fractals(2, 32, seed=0).float().mean(dim=(2, 3))
    expected = [[125.506, 129.637, 80.707], [141.793, 195.518, 73.948]]
    assert means.numpy() == pytest.approx(np.array(expected), abs=0.1)


def test_no_image_is_empty_and_no_two_are_alike() -> None:
    images = fractals(40, 32, seed=0).float()
    assert images.flatten(1).std(dim=1).min() > 1
    assert len(torch.unique(images.flatten(1), dim=0)) == 40


def test_every_map_shrinks_and_the_larger_ones_are_taken_more_often() -> None:
    maps, weights = _contractions(50, np.random.default_rng(0))
    assert np.linalg.norm(maps[..., :2], ord=2, axis=(2, 3)).max() < 0.9 + 1e-9
    np.testing.assert_allclose(weights.sum(1), 1)
    assert set((weights > 0).sum(1)) == {2, 3, 4}
    areas = np.abs(np.linalg.det(maps[..., :2]))
    used = weights > 0
    ratio = weights[used] / areas[used]
    np.testing.assert_allclose(ratio, np.repeat((1 / (areas * used).sum(1)), used.sum(1)))


def test_a_drawing_by_hand() -> None:
    # Three of four pixels are lit, by 150, 100 and 50 points; of the last 100 none is inside: they
    # lie on the far rim.
    places = np.zeros((400, 1, 2))
    places[150:250, 0] = [0.0, 0.6]
    places[250:300, 0] = [0.6, 0.0]
    places[300:, 0] = [1.0, 1.0]
    painted = np.zeros((400, 1, 3))
    painted[150:250, 0] = [1.0, 0.0, 0.0]
    painted[250:300:2, 0] = [0.0, 1.0, 0.0]
    ground = np.array([[[0.2], [0.6], [1.0]]])
    image = _drawn(places, painted, ground, 2)[0].numpy()
    assert image[:, 0, 0].tolist() == [0, 0, 0]
    for place, count, colour in (((1, 0), 100, [1, 0, 0]), ((0, 1), 50, [0, 0.5, 0])):
        light = np.log(count + 1) / np.log(151)
        blended = ground[0, :, 0] * (1 - light) + np.array(colour) * light
        assert np.abs(image[:, place[0], place[1]] - blended * 255).max() <= 0.5
    assert image[:, 1, 1].tolist() == [51, 153, 255]


def test_points_land_as_a_slow_loop_has_them() -> None:
    rng = np.random.default_rng(5)
    maps, weights = _contractions(3, rng)
    colours, choices = rng.random((3, 4, 3)), rng.random((30, 3))
    places, painted = _points(maps, weights, colours, choices)
    assert places.shape == (10, 3, 2)  # the first twenty have not settled
    for number in range(3):
        point, colour = np.zeros(2), np.full(3, 0.5)
        for step, choice in enumerate(choices[:, number]):
            index = int(np.searchsorted(weights[number].cumsum(), choice))
            jump = maps[number, index]
            point = jump[:, :2] @ point + jump[:, 2]
            colour = (colour + colours[number, index]) / 2
            if step >= 20:
                np.testing.assert_allclose(places[step - 20, number], point, atol=1e-12)
                np.testing.assert_allclose(painted[step - 20, number], colour, atol=1e-12)


def test_images_do_not_depend_on_how_many_are_drawn_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = fractals(5, 16, seed=3)
    monkeypatch.setattr("goen.data.transforms.fractals._AT_ONCE", 2)
    assert torch.equal(fractals(5, 16, seed=3), together)
