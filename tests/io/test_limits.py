import pytest

from goen.errors import UsageError
from goen.io import limits
from goen.io.limits import IMAGE_PIXELS, NETWORK_WORK, check_image_size


@pytest.mark.parametrize(
    ("height", "width", "network"),
    [(1, 1, 0), (2048, 2048, 0), (32, 32, 64), (256, 256, 64), (1024, 1024, 16), (1024, 1024, 2)],
)
def test_sizes_within_the_limits_are_accepted(height: int, width: int, network: int) -> None:
    check_image_size(height, width, network)


@pytest.mark.parametrize(
    ("height", "width", "network", "most"),
    [
        (2048, 2049, 0, "4,194,304 pixels, got 2048×2049"),
        (20_000, 20_000, 0, "4,194,304 pixels, got 20000×20000"),
        (256, 257, 64, "65,536 pixels with a ResNet-18 of width 64, got 256×257"),
        (1024, 1025, 2, "1,048,576 pixels with a ResNet-18 of width 2, got 1024×1025"),
        (1, 1, 2**40, "0 pixels with a ResNet-18 of width 1099511627776, got 1×1"),
    ],
)
def test_sizes_beyond_them_are_refused(height: int, width: int, network: int, most: str) -> None:
    with pytest.raises(UsageError, match=f"at most {most}"):
        check_image_size(height, width, network)


def test_an_ensemble_works_as_much_as_all_its_members() -> None:
    check_image_size(181, 181, 64, members=2)
    with pytest.raises(UsageError, match="32,768 pixels with 2 networks of width 64, got 182×182"):
        check_image_size(182, 182, 64, members=2)
    with pytest.raises(UsageError, match="65,536 pixels with 16 networks of width 1, got 257×257"):
        check_image_size(257, 257, 1, members=16)


def test_the_limits_are_those_their_reasons_speak_of() -> None:
    assert IMAGE_PIXELS == 2048 * 2048
    assert NETWORK_WORK == 64**2 * 256**2 == 16**2 * 1024**2
    assert limits.JSON_BYTES == 8 * 2**20
    assert limits.JSON_DEPTH == 32
    assert limits.ROWS_BYTES == 256 * 2**20
    assert limits.ROW_BYTES == 2**20
    assert limits.TENSOR_BYTES == 32 * 2**30
    assert limits.INPUT_VALUES == 16 * 1024 * 1024
    assert limits.CLASSES == 2**20
    assert limits.HEAD_WEIGHT == 10_000
    assert limits.MEMBERS == 16
