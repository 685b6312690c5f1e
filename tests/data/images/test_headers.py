from pathlib import Path

import pytest
from PIL import Image

from goen.data.images.decoding import read_image
from goen.data.images.headers import ImageHeader
from goen.errors import DataCorrupt, LeakError
from tests.data.encoded import COLOUR, encoded, tiff_of_one_tile


def test_a_header_is_checked_before_the_pixels_are_decoded(tmp_path: Path) -> None:
    def check(header: ImageHeader) -> None:
        raise LeakError(f"{header.format} {header.width} {header.height} {header.decoded}")

    data = encoded(Image.fromarray(COLOUR))
    with pytest.raises(LeakError, match="PNG 20 12 240"):
        read_image(data[:-30], check=check)
    (tmp_path / "image").write_bytes(encoded(Image.fromarray(COLOUR), "JPEG"))
    with pytest.raises(LeakError, match="JPEG 20 12 240"):
        read_image(tmp_path / "image", check=check)
    with pytest.raises(LeakError, match=f"TIFF 1 1 {16_384**2}"):
        read_image(tiff_of_one_tile(1, 1, (16_384, 16_384)), check=check)
    with pytest.raises(DataCorrupt, match="image is not an image"):
        read_image(b"text", check=check)
