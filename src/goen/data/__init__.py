"""Image sets: one value type, where they come from, how they are split, corrupted and displayed."""

from goen.data.imageset import ImageSet, require_disjoint
from goen.data.protocol import OodSet, Protocol, protocol
from goen.data.sets.folders import open_folder
from goen.data.sets.sources import load_set, names

__all__ = [
    "ImageSet",
    "OodSet",
    "Protocol",
    "load_set",
    "names",
    "open_folder",
    "protocol",
    "require_disjoint",
]
