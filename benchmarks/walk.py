"""The walk of a call: functions and modules of goen that ``goen score ONE_IMAGE`` passes through.

Counts distinct functions of goen that are called and the modules in which they lie, in all threads.
What runs while modules are imported does not count, nor do comprehensions and lambdas.

Run: python benchmarks/walk.py            counts, module by module
     python benchmarks/walk.py --names    and the functions

Every function counts, also a property or a constructor. Goal: fewer than 60 functions in fewer than
35 modules. Before the one scoring pipeline there were 284 in 60 modules, with it 322 in 61, now 307
in 68. Of these, 157 load the gate: every field is read with its type, and the outputs recorded with
it are compared, for which network and detector run once.
"""

import argparse
import io
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

from PIL import Image
from sklearn.datasets import load_sample_images

import goen
from goen.cli.main import main

ROOT = str(Path(goen.__file__).parent)
IMPORTING = ("<module>", "_find_and_load", "_load_unlocked", "exec_module")


class Walk:
    """The functions that were called, by module."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = defaultdict(set)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOT):
            return
        if code.co_name.startswith("<") or _while_importing(frame):
            return
        module = Path(code.co_filename).relative_to(ROOT).as_posix()
        self.found[module].add(code.co_qualname)


def _while_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in IMPORTING:
            return frame.f_globals.get("__name__") != "__main__"
        frame = frame.f_back
    return False


def walk(words: list[str]) -> Walk:
    """The walk of a command."""
    found = Walk()
    threading.setprofile(found)
    sys.setprofile(found)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            code = main(words)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert code == 0, code
    return found


def run() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true")
    parser.add_argument("words", nargs="*", help="another command")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "flower.jpg")
        Image.fromarray(load_sample_images().images[1]).save(image)
        found = walk(args.words or ["score", str(image), "--format", "table"]).found
    for module in sorted(found):
        names = ": " + ", ".join(sorted(found[module])) if args.names else ""
        print(f"{len(found[module]):3}  {module}{names}")
    packages = Counter[str]()
    for module, names in found.items():
        packages[module.partition("/")[0].removesuffix(".py")] += len(names)
    print(", ".join(f"{package} {count}" for package, count in packages.most_common()))
    print(f"{packages.total()} functions in {len(found)} modules")


if __name__ == "__main__":
    run()
