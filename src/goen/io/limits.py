"""The most that goen takes from a saved file, in one place, each limit with its reason.

A gate or the folder of a run may come from anyone. Loading one takes time and memory in proportion
to its files, and the limits below bound the rest: what a few bytes could otherwise demand.
"""

from pathlib import Path

from goen.errors import UsageError

JSON_BYTES = 1 << 23
"""Of a manifest, a summary or the header of a file of tensors. A manifest with 30,000 classes and a
guarantee for each is this large; parsed, the worst 8 MB need some 500 MB."""

JSON_DEPTH = 32
"""Objects and lists within each other. goen writes ten at most; Python's own functions fail at a
depth that depends on the caller's, from some hundreds on."""

ROWS_BYTES = 1 << 28
"""Of a file of JSON lines. The benchmark of all methods with five seeds writes 5 MB."""

ROW_BYTES = 1 << 20
"""Of one line of it. A row names the sets that fitted a method, a few hundred bytes."""

TENSOR_BYTES = 1 << 35
"""Of a file of tensors: more than the largest vision networks. It is read once for its checksum, at
about a gigabyte per second."""

UNPACKED_BYTES = 1 << 30
"""Of the arrays in a compressed file, whatever its size. Zeros shrink to a thousandth."""

UNPACKED_TIMES = 100
"""And how many times the size of their file larger arrays may have. Features shrink to a half, or
to a tenth if most are 0."""

IMAGE_PIXELS = 1 << 22
"""Height times width of a gate's images: 2048 × 2048. Loading a gate passes two images of its size
through the network; a network of a few layers needs gigabytes for two of this size."""

INPUT_VALUES = 1 << 24
"""Of an input of a gate, in all channels or tensors together: five minutes of sound, or sixteen
bands of 1024 × 1024. Loading a gate passes two of its inputs through the network."""

CLASSES = 1 << 20
"""Of a classifier. Class numbers are counted in arrays as long as the largest, and a manifest
cannot name more classes than this."""

HEAD_WEIGHT = 1e4
"""The largest weight of a calibration head. Trained ones are below 100; below this limit the logit
of finite cues is finite in float32."""

NETWORK_WORK = 1 << 28
"""Width squared times pixels, to which the time of a pass through goen's ResNet-18 is proportional
(a width below 16 counts as 16: narrower layers are not faster). The paper's width of 64 at 256 ×
256 takes two seconds for two images on one core, width 16 at 1024 × 1024 three seconds and 1 GB."""

MEMBERS = 16
"""Networks of an ensemble. Each is built before its weights are read."""


def most_unpacked(file: Path) -> int:
    """The bytes that the arrays in a compressed file may have together."""
    return min(TENSOR_BYTES, max(UNPACKED_BYTES, UNPACKED_TIMES * file.stat().st_size))


def check_image_size(height: int, width: int, network_width: int = 0, members: int = 1) -> None:
    """Raise a ``UsageError`` unless a gate with images of this size can be saved and loaded.

    Args:
        height: in pixels.
        width: in pixels.
        network_width: of goen's own network; 0 for another.
        members: how many of it there are.

    Example:
        >>> check_image_size(32, 32, network_width=64)
        >>> check_image_size(20_000, 20_000)
        Traceback (most recent call last):
        ...
        goen.errors.UsageError: image_size should have at most 4,194,304 pixels, got 20000×20000.
    """
    most = IMAGE_PIXELS
    if network_width:
        most = min(most, NETWORK_WORK // (members * max(network_width, 16) ** 2))
    if height * width > most:
        kind = "a ResNet-18" if members == 1 else f"{members} networks"
        of = f" with {kind} of width {network_width}" if network_width else ""
        raise UsageError(
            f"image_size should have at most {most:,} pixels{of}, got {height}×{width}."
        )
