"""What a gate takes: images of one shape, or tensors as they are."""

import numpy as np
import pytest
import torch

from goen.data.input_spec import (
    ImageInputs,
    TensorInputs,
    TensorPart,
    check_images,
    digest_pixels,
    digest_tensors,
    find_input_spec,
)
from goen.errors import UsageError
from goen.functional._rows import PIXEL_SLACK


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 8, 8, 3), r"\(N, C, H, W\), channels first; got \(2, 8, 8, 3\)"),
        (torch.zeros(2, 5, 8, 4), r"channels first; got \(2, 5, 8, 4\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "got torch.int64"),
        (torch.full((2, 3, 8, 8), 255.0), r"lie in \[0, 1\]; got 255\.\.255"),
        (torch.full((2, 3, 8, 8), -0.5), r"lie in \[0, 1\]"),
        (torch.full((2, 3, 8, 8), torch.nan), r"Images \[0, 1\] hold NaN or infinity"),
        (torch.zeros(2, 3, 8, 8).to(torch.float8_e4m3fn), r"got torch\.float8_e4m3fn"),
    ],
)
def test_images_of_another_form_are_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_images(images)


@pytest.mark.parametrize("shape", [(2, 4, 8, 4), (2, 4, 8, 1), (2, 5, 8, 5), (2, 13, 8, 8)])
def test_images_may_be_narrow_or_have_many_channels(shape: tuple[int, ...]) -> None:
    assert check_images(torch.zeros(shape)).shape == shape


def test_the_slack_of_float_images_includes_its_ends() -> None:
    for value in (-PIXEL_SLACK, 1 + PIXEL_SLACK):
        image = torch.full((1, 3, 8, 8), value)
        assert torch.equal(check_images(image), image)
    for value in (-1.1 * PIXEL_SLACK, 1 + 1.1 * PIXEL_SLACK):
        with pytest.raises(UsageError, match="lie in"):
            check_images(torch.full((1, 3, 8, 8), value))


def test_one_image_is_a_batch_of_one() -> None:
    assert check_images(torch.zeros(3, 8, 8)).shape == (1, 3, 8, 8)


def test_the_number_of_channels_is_part_of_the_kind() -> None:
    grey = ImageInputs.of(torch.zeros(5, 1, 6, 7))
    assert grey == ImageInputs(1, 6, 7)
    assert grey.size == (6, 7)
    assert (str(grey), str(ImageInputs(3, 6, 7))) == ("images of 6×7, grey", "images of 6×7")
    assert str(ImageInputs(13, 6, 7, 16)) == "images of 6×7, 13 channels of 16 bits"
    with pytest.raises(UsageError, match=r"\(N, 1, H, W\), channels first; got \(2, 3, 6, 7\)"):
        grey.check(torch.zeros(2, 3, 6, 7), "train")
    with pytest.raises(UsageError, match="train: images are all of one size, 6×7; got 7×7"):
        grey.check(torch.zeros(2, 1, 7, 7), "train")
    assert grey.check(torch.zeros(2, 1, 6, 7).double(), "train").dtype == torch.float32
    sixteen = torch.zeros(2, 1, 6, 7, dtype=torch.uint16)
    assert grey.check(sixteen, "train") is sixteen
    assert ImageInputs.of(sixteen) == ImageInputs(1, 6, 7, 16)


def test_patterns_differ_between_images_and_repeat() -> None:
    one = ImageInputs(2, 3, 5).pattern()
    assert one.shape == (2, 2, 3, 5)
    assert one.dtype == torch.uint8
    assert not torch.equal(one[0], one[1])
    assert torch.equal(one, ImageInputs(2, 3, 5).pattern())
    # By hand: 97 n mod 251.
    assert one.flatten()[:4].tolist() == [0, 97, 194, 40]


def test_tensors_are_known_by_their_form_axes_and_types() -> None:
    ids, mask = torch.ones(4, 9, dtype=torch.int32), torch.ones(4, 9, dtype=torch.bool)
    kind = TensorInputs.of({"ids": ids, "mask": mask})
    parts = {"ids": TensorPart("int", (9,)), "mask": TensorPart("bool", (9,))}
    assert kind == TensorInputs("dict", parts)
    assert str(kind) == "tensors ids int (N, 9), mask bool (N, 9)"
    assert TensorInputs.of((ids, mask)).form == "tuple"
    assert [*TensorInputs.of((ids, mask)).parts] == ["0", "1"]
    assert str(TensorInputs.of(torch.zeros(2, 3))) == "tensors float (N, 3)"
    # Another length is fine, and so is another order and width of whole numbers.
    shorter = {"mask": mask[:, :4], "ids": ids[:, :4].long()}
    assert kind.check(shorter, "train") is shorter


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(4, 9, dtype=torch.int64),
        {"ids": torch.ones(4, 9, dtype=torch.int64)},
        {"ids": torch.ones(4, 9), "mask": torch.ones(4, 9, dtype=torch.bool)},
        {"ids": torch.ones(4, dtype=torch.int64), "mask": torch.ones(4, 9, dtype=torch.bool)},
    ],
)
def test_inputs_of_another_form_are_refused(batch: object) -> None:
    parts = {"ids": TensorPart("int", (9,)), "mask": TensorPart("bool", (9,))}
    with pytest.raises(UsageError, match=r"train: inputs are tensors ids int \(N, 9\), mask bool"):
        TensorInputs("dict", parts).check(batch, "train")  # type: ignore[arg-type]


def test_parts_have_as_many_inputs_as_each_other() -> None:
    kind = TensorInputs.of((torch.zeros(4, 2), torch.zeros(4)))
    with pytest.raises(UsageError, match="train 1 has 3 inputs where another part has 4"):
        kind.check((torch.zeros(4, 2), torch.zeros(3)), "train")


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="got complex ones"):
        TensorInputs.of(torch.zeros(2, 3, dtype=torch.complex64))


def test_patterns_of_tensors_are_valid_token_numbers_and_masks() -> None:
    kind = TensorInputs(
        "tuple",
        {
            "0": TensorPart("float", (2, 3)),
            "1": TensorPart("int", (4,)),
            "2": TensorPart("bool", ()),
        },
    )
    floats, whole, flags = kind.pattern()  # type: ignore[misc]
    assert floats.shape == (2, 2, 3)
    assert floats.dtype == torch.float32
    assert float(floats.abs().max()) <= 0.5
    assert len(floats.flatten().unique()) == 12
    assert torch.equal(whole, torch.ones(2, 4, dtype=torch.int64))
    assert torch.equal(flags, torch.ones(2, dtype=torch.bool))
    assert isinstance(TensorInputs("tensor", {"": TensorPart("int", ())}).pattern(), torch.Tensor)
    assert [*TensorInputs("dict", {"a": TensorPart("int", ())}).pattern()] == ["a"]


def test_what_looks_like_images_is_images_unless_asked_otherwise() -> None:
    maps = torch.zeros(2, 5, 4, 6)
    assert find_input_spec(maps, "auto", "train") == ImageInputs(5, 4, 6)
    assert find_input_spec(maps, "tensors", "train") == TensorInputs.of(maps)
    for other in (torch.zeros(2, 7), torch.zeros(2, 7, 3), {"a": maps}, (maps, maps)):
        assert find_input_spec(other, "auto", "train") == TensorInputs.of(other)
    with pytest.raises(UsageError, match="one tensor"):
        find_input_spec({"a": maps}, "images", "train")
    with pytest.raises(UsageError, match=r"images\[:, None\]"):
        find_input_spec(torch.zeros(2, 8, 8, dtype=torch.uint8), "auto", "train")
    with pytest.raises(UsageError, match=r"got torch\.int64.* inputs='tensors'"):
        find_input_spec(maps.long(), "auto", "train")


def test_the_same_image_has_one_hash_in_every_type() -> None:
    pixels = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).to(torch.uint8)
    expected = digest_pixels(pixels)
    for other in (
        pixels.float() / 255,
        pixels.double() / 255,
        (pixels.float() / 255).half(),
        (pixels.float() / 255).bfloat16(),
        (pixels.int() * 257).to(torch.uint16),
    ):
        assert np.array_equal(digest_pixels(other), expected)
    assert expected[0] != expected[1]


def test_images_that_differ_by_less_than_8_bits_have_different_hashes() -> None:
    dark = torch.arange(120).view(2, 3, 4, 5)
    whole = digest_pixels(dark.to(torch.uint16))
    assert whole[0] != whole[1]
    floats = digest_pixels(dark.double() / 65535)
    assert np.array_equal(floats, whole)
    assert digest_pixels(torch.zeros(1, 3, 4, 5))[0] not in whole
    # Each image by itself: of what batch it is a part does not matter.
    mixed = torch.cat([dark.float() / 65535, torch.full((1, 3, 4, 5), 7 / 255)])
    assert np.array_equal(digest_pixels(mixed)[:2], whole)
    assert digest_pixels(mixed)[2] == digest_pixels(torch.full((1, 3, 4, 5), 7).byte())[0]


def test_hashes_of_tensors_tell_names_values_and_types_apart() -> None:
    x = torch.arange(6.0).view(2, 3)
    expected = digest_tensors({"x": x})
    assert np.array_equal(digest_tensors({"x": x.double()}), expected)
    # Values that float32 cannot tell apart, or not hold.
    values = [[1.0], [1.0 + 2**-40], [1e300], [1e301], [float("nan")]]
    fine = torch.tensor(values, dtype=torch.float64)
    assert len(np.unique(digest_tensors(fine))) == len(fine)
    assert digest_tensors(fine)[0] == digest_tensors(fine.float())[0]
    assert digest_tensors(fine)[4] == digest_tensors(fine.float())[4]
    zeros = digest_tensors(torch.tensor([[0.0], [-0.0]]))
    assert zeros[0] == zeros[1]
    for other in ({"y": x}, {"x": x.long()}, {"x": x + 1}, {"x": x, "y": x}, (x,), x[:, :2]):
        assert not np.isin(digest_tensors(other), expected).any()
