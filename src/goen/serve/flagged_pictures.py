"""Flagged pictures of a service in one folder, at most so many: the oldest are removed."""

import io
import re
import time
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image

from goen.data.forms import Pixels, for_people
from goen.data.pictures import read_header
from goen.files import make_folder, whole_file
from goen.serve.uploads import FORMATS, Upload

_NAME = re.compile(r"flagged-\d{8}T\d{6}-\d{9}-\d{6}\.(bmp|gif|jpg|png|tif|webp)")


class FlaggedPictures:
    """Keeps pictures under names of its own; nothing of a request becomes part of a name.

    Args:
        folder: made if it is not there. Other files in it stay.
        most: pictures in it; those of earlier services count.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = make_folder(folder), most
        self._lock = Lock()
        self._number = 0
        self._kept = sorted(p.name for p in folder.iterdir() if _NAME.fullmatch(p.name))

    def keep(self, upload: Upload) -> str:
        """Write the picture as it came; its file's name."""
        suffix = FORMATS[read_header(upload.data, "This").format]
        return self._write(upload.data, suffix)

    def keep_image(self, image: Pixels) -> str:
        """Write an image ``(C, H, W)`` as a PNG, as people see it; its file's name."""
        content = io.BytesIO()
        shown = np.ascontiguousarray(for_people(image).transpose(1, 2, 0))
        Image.fromarray(shown).save(content, "PNG")
        return self._write(content.getvalue(), "png")

    def _write(self, data: bytes, suffix: str) -> str:
        with self._lock:
            now = time.time_ns()
            when = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))
            self._number = (self._number + 1) % 10**6
            name = f"flagged-{when}-{now % 10**9:09d}-{self._number:06d}.{suffix}"
            with whole_file(self.folder / name) as temporary:
                temporary.write_bytes(data)
            self._kept.append(name)
            while len(self._kept) > self.most:
                (self.folder / self._kept.pop(0)).unlink(missing_ok=True)
            return name
