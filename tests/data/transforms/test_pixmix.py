import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import map_coordinates

from goen.data.transforms import pixmix
from goen.data.transforms.pixmix import OPERATIONS, augmented, mix, pix_mix
from goen.errors import UsageError


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ramp() -> Image.Image:
    """Every grey level once, the red channel rising by row, the others constant."""
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[..., 0] = np.arange(256).reshape(16, 16)
    pixels[..., 1], pixels[..., 2] = 200, 30
    return Image.fromarray(pixels)


def changed(name: str, level: float, image: Image.Image | None = None) -> np.ndarray:
    return np.array(OPERATIONS[name](image or ramp(), level)).astype(int)


def test_operations_by_hand() -> None:
    before = np.array(ramp()).astype(int)
    # 4 - int(3 * 4 / 10) = 3 bits.
    assert set(np.unique(changed("posterise", 3.0)[..., 0])) == set(range(0, 256, 32))
    assert set(np.unique(changed("posterise", 7.0)[..., 0])) == set(range(0, 256, 64))
    # 256 - int(3 * 256 / 10) = 180: values from there on are inverted.
    assert (
        changed("solarise", 3.0)[..., 0].tolist()
        == np.where(before[..., 0] < 180, before[..., 0], 255 - before[..., 0]).tolist()
    )
    assert changed("solarise", -3.0).tolist() == changed("solarise", 3.0).tolist()
    # int(2 * 16 / 3 / 10) = 1 pixel.
    assert changed("translate_x", 2.0)[:, :-1].tolist() == before[:, 1:].tolist()
    assert changed("translate_x", -2.0)[:, 1:].tolist() == before[:, :-1].tolist()
    assert changed("translate_y", 2.0)[:-1].tolist() == before[1:].tolist()
    # 0.1 + 1.8 * 5 / 10 leaves an image as it is.
    for name in ("colour", "contrast", "brightness", "sharpness"):
        assert changed(name, 5.0).tolist() == before.tolist()
        assert changed(name, -5.0).tolist() == before.tolist()
    assert np.abs(changed("brightness", 1.0) - 0.28 * before).max() <= 1
    narrow = Image.fromarray((np.array(ramp()) // 4 + 60).astype(np.uint8))
    assert changed("autocontrast", 1.0, narrow)[..., 0].min() == 0
    assert changed("autocontrast", 1.0, narrow)[..., 0].max() == 255
    # Two values become black and white.
    two = np.zeros((32, 32, 3), np.uint8) + 100
    two[:, 24:] = 120
    assert set(np.unique(changed("equalise", 1.0, Image.fromarray(two)))) == {0, 255}


def test_shears_and_rotations_move_what_they_should() -> None:
    column = np.zeros((9, 9, 3), np.uint8)
    column[:, 4] = 255
    image = Image.fromarray(column)
    # A shear by 0.3 * 10 / 10 of a pixel per row: the column leans, a row does not.
    places = changed("shear_x", 10.0, image)[..., 0].argmax(axis=1)
    assert (np.diff(places) <= 0).all()
    assert places[0] - places[-1] == pytest.approx(0.3 * 8, abs=1)
    assert changed("shear_y", 10.0, image)[:4, 4, 0].min() == 255
    turned = changed("rotate", 10.0, image)[..., 0]  # 30 degrees against the clock
    assert turned[0].argmax() < 4 < turned[-1].argmax()
    assert changed("rotate", 0.3, image).tolist() == column.tolist()  # int(0.9) degrees


@pytest.mark.parametrize(
    ("name", "matrix"),
    [("shear_x", [[1, 0.15], [0, 1]]), ("shear_y", [[1, 0], [0.15, 1]])],
)
def test_shears_equal_scipys_interpolation(name: str, matrix: list[list[float]]) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
    rows, columns = np.mgrid[:20, :20] + 0.5
    x, y = np.einsum("ij,jrc->irc", np.array(matrix), np.stack([columns, rows])) - 0.5
    within = (x >= 0) & (x <= 19) & (y >= 0) & (y <= 19)
    assert within.sum() > 300
    found = changed(name, 5.0, Image.fromarray(pixels))
    for channel in range(3):
        expected = map_coordinates(pixels[..., channel].astype(float), [y, x], order=1)
        assert np.abs(found[..., channel] - expected)[within].max() <= 1


def test_a_rotation_is_by_three_degrees_a_level() -> None:
    turned = ramp().rotate(-21, resample=Image.Resampling.BILINEAR)
    assert changed("rotate", -7.0).tolist() == np.array(turned).astype(int).tolist()


def test_mixtures_equal_a_slow_loop() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(2, 200, 3, 4, 4, dtype=torch.float64)
    ours = mix(x, y, generator())
    drawn = generator()
    uniform = torch.rand(3, 200, generator=drawn)
    subtract, multiply = (torch.rand(200, generator=drawn) < 0.5 for _ in range(2))
    for row in range(200):
        one, two, three = (float(u) for u in uniform[:, row])
        a, b = one ** (1 / 3), 1 - two ** (1 / 3)
        if subtract[row]:
            a, b = 1 + (1 - three ** (1 / 3)), -b
        own, other = x[row].numpy(), y[row].numpy()
        expected = (a * (2 * own - 1) + b * (2 * other - 1) + 1) / 2
        if multiply[row]:
            expected = (2 * own) ** a * (2 * other) ** b / 2
        np.testing.assert_allclose(ours[row].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert 60 < subtract.sum() < 140
    assert 60 < multiply.sum() < 140


def test_black_in_a_product_stays_finite() -> None:
    assert torch.isfinite(
        mix(torch.zeros(50, 3, 2, 2), torch.zeros(50, 3, 2, 2), generator())
    ).all()


def test_only_chosen_images_are_augmented() -> None:
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=generator())
    where = torch.arange(40) % 2 == 0
    found = augmented(images, where, generator())
    same = (found == images).flatten(1).all(1)
    assert same[~where].all()
    assert same[where].sum() < 8
    assert torch.equal(found, augmented(images, where, generator()))


def test_a_tenth_stays_as_it_is_and_a_share_is_a_share() -> None:
    images = torch.randint(0, 256, (400, 3, 8, 8), dtype=torch.uint8, generator=generator())
    patterns = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=generator(1))

    def untouched(share: float) -> float:
        found = pix_mix(images, patterns, generator(), share=share)
        assert found.dtype == torch.uint8
        return float((found == images).flatten(1).all(1).float().mean())

    # No mixture for one in five, no operation for one in two; a few operations change nothing.
    assert 0.05 < untouched(1.0) < 0.2
    assert 0.45 < untouched(0.5) < 0.65
    assert untouched(0.0) == 1.0


def test_mixtures_stay_mostly_the_image() -> None:
    image = torch.full((400, 3, 4, 4), 200, dtype=torch.uint8)
    pattern = torch.full((1, 3, 4, 4), 60, dtype=torch.uint8)
    values = pix_mix(image, pattern, generator()).float().mean(dim=(1, 2, 3))
    assert abs(values.median() - 200) < abs(values.median() - 60)


def test_patterns_and_copies_both_take_part() -> None:
    black = torch.zeros(300, 3, 4, 4, dtype=torch.uint8)
    white = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    with_white = pix_mix(black, white, generator()).float().mean(dim=(1, 2, 3))
    with_black = pix_mix(black, black[:1], generator()).float().mean(dim=(1, 2, 3))
    assert (with_white != with_black).float().mean() > 0.2
    assert (with_white == with_black).float().mean() > 0.2


@pytest.mark.parametrize("images", [torch.zeros(1, 1, 4, 4).byte(), torch.zeros(1, 3, 4, 4)])
def test_other_images_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="colour images of 8 bits"):
        pix_mix(images, images, generator())


def test_none_to_four_mixtures_are_equally_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixmix, "augmented", lambda images, where, generator: images)
    monkeypatch.setattr(pixmix, "mix", lambda values, partners, generator: values + 1 / 255)
    images = torch.full((3000, 3, 1, 1), 100, dtype=torch.uint8)
    found = pix_mix(images, images[:1], generator())[:, 0, 0, 0] - 100
    counts = torch.bincount(found, minlength=5)
    assert len(counts) == 5
    assert (counts - 600).abs().max() < 100  # four standard deviations are 88
    half = pix_mix(images, images[:1], generator(), share=0.5)[:, 0, 0, 0] - 100
    assert (torch.bincount(half)[1:] - 300).abs().max() < 80


def test_the_partner_is_an_augmented_copy_or_any_of_the_patterns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pixmix, "mix", lambda values, partners, generator: partners)
    moved = {"shift": lambda image, level: image.point(lambda value: value + 20)}
    monkeypatch.setattr(pixmix, "OPERATIONS", moved)
    images = torch.full((4000, 3, 1, 1), 100, dtype=torch.uint8)
    patterns = torch.tensor([7, 8, 9], dtype=torch.uint8)[:, None, None, None].expand(3, 3, 1, 1)
    values = pix_mix(images, patterns, generator())[:, 0, 0, 0]
    # No mixture for 800, of which half are augmented; the last partner of the others.
    expected = {100: 400, 120: 400 + 1600, 7: 1600 / 3, 8: 1600 / 3, 9: 1600 / 3}
    counts = torch.bincount(values, minlength=256)
    assert counts.sum() == sum(counts[value] for value in expected)
    for value, count in expected.items():
        assert abs(int(counts[value]) - count) < 120


def test_white_stays_white(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixmix, "augmented", lambda images, where, generator: images)
    monkeypatch.setattr(pixmix, "mix", lambda values, partners, generator: partners)
    white = torch.full((50, 3, 1, 1), 255, dtype=torch.uint8)
    assert bool((pix_mix(white, white[:1], generator()) == 255).all())


def test_mixtures_are_kept_within_black_and_white(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixmix, "augmented", lambda images, where, generator: images)
    images = torch.full((200, 3, 1, 1), 100, dtype=torch.uint8)
    for shift, end in ((2.0, 255), (-2.0, 0)):
        monkeypatch.setattr(pixmix, "mix", lambda values, *_, by=shift: values + by)
        found = pix_mix(images, images[:1], generator())
        assert {*found[:, 0, 0, 0].tolist()} == {100, end}
