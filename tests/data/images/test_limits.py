from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import sleep

import pytest
from PIL import Image

from goen.data.images import limits
from goen.data.images.decoding import read_image
from goen.data.images.limits import ByteBudget
from goen.errors import DataCorrupt
from tests.data.encoded import COLOUR, encoded
from tests.data.images.test_formats import bmp_of_run_lengths, jpeg_with_scans

Size = tuple[int, int] | None


def test_a_photograph_of_108_megapixels_is_read() -> None:
    image = Image.new("L", (12_000, 9_000), 130)
    assert (read_image(encoded(image, "JPEG"), (8, 8)) == 130).all()


@pytest.mark.parametrize(
    ("limit", "value", "image", "size"),
    [
        ("MAX_PIXELS", 240, encoded(Image.fromarray(COLOUR)), None),
        ("MAX_PIXELS", 2600, encoded(Image.new("L", (3, 200), 9)), (2, 13)),
        ("MAX_SCANS", 7, jpeg_with_scans(1), None),
        ("MAX_RUN_LENGTH_PIXELS", 20, bmp_of_run_lengths(5, 4), None),
    ],
)
def test_what_is_as_large_as_it_may_be_is_read(
    limit: str, value: int, image: bytes, size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, limit, value)
    assert read_image(image, size).ndim == 3
    monkeypatch.setattr(limits, limit, value - 1)
    with pytest.raises(DataCorrupt, match=r"image has|image is a"):
        read_image(image, size)


def test_the_limits_are_those_their_reasons_speak_of() -> None:
    assert limits.MAX_PIXELS == 2 * (2**30 // 4 // 3)  # where Pillow refuses
    assert limits.MAX_SCANS == 200
    assert limits.MAX_RUN_LENGTH_PIXELS == 10_000_000
    assert limits.DECODING_BYTES == limits.memory.limit == 512 * 2**20


def test_a_narrow_image_is_refused_before_it_becomes_huge() -> None:
    long = encoded(Image.new("L", (1, 900_000), 9))
    with pytest.raises(DataCorrupt, match="1×900000 pixels: too narrow for its height"):
        read_image(long, (224, 224), "long.png")
    assert (read_image(long, (2, 16)) == 9).all()
    assert (read_image(encoded(Image.new("L", (900_000, 1), 9)), (224, 224)) == 9).all()


def test_large_images_are_decoded_one_at_a_time() -> None:
    budget, most, lock = ByteBudget(10), [0], Lock()

    def decode(needed: int) -> None:
        with budget.hold(needed):
            with lock:
                most[0] = max(most[0], budget.used)
            sleep(0.002)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [3, 4, 25, 2, 9, 1, 30, 5] * 5))
    assert budget.used == 0
    assert most[0] == 30  # alone; never 30 and anything else
    with pytest.raises(KeyError), budget.hold(7):
        raise KeyError
    assert budget.used == 0
