"""Damaged folders of finished runs: goen report refuses them with an ArtifactError, or reports."""

import json
import random
import shutil
import warnings
from pathlib import Path
from unittest.mock import patch

from goen.errors import ArtifactError
from goen.report import write_report
from goen.report.figures import style
from goen.studies import PRESETS, RunConfig, run
from tests.fuzz.case import Fuzzer
from tests.fuzz.gates import check_message
from tests.fuzz.json_damage import damaged_json
from tests.fuzz.tensor_damage import damaged_tensors
from tests.report.by_hand import STUDIES
from tests.tiny import FAST, tiny_protocol

_FILES = ("*.json", "*.jsonl", "*.safetensors", "gate/manifest.json")


class RunFuzzer(Fuzzer):
    """Damages one file of a run of every study."""

    name = "runs"
    seconds = 30.0
    megabytes = 1000.0

    def __init__(self, folder: Path, *, with_training: bool = True) -> None:
        super().__init__(folder)
        self._bases = [make(folder / name) for name, make in STUDIES.items()]
        if with_training:
            with patch.dict(PRESETS, {"fast": FAST}):
                run(RunConfig(preset="fast"), tiny_protocol(), folder / "run")  # type: ignore[arg-type]
            # It has the most files, so it is drawn as often as all others together.
            self._bases += [folder / "run"] * len(STUDIES)

    def run(self, draw: random.Random) -> str:
        base, case = draw.choice(self._bases), self.folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(
            base, case, ignore=shutil.ignore_patterns(".*.lock", ".lock", "figures", "tables")
        )
        files = [file for pattern in _FILES for file in sorted(case.glob(pattern))]
        chosen = draw.choice(files)
        self.what = f"{base.name}/{chosen.relative_to(case)}: {_damage(draw, chosen)}"
        # PNG and PDF take most of the time.
        with warnings.catch_warnings(), patch.object(style, "FORMS", ("svg",)):
            warnings.simplefilter("ignore")  # of fonts without a glyph, of numbers that overflow
            try:
                write_report(case)
            except ArtifactError as error:
                check_message(error)
                return "refused"
        return "reported"


def _damage(draw: random.Random, path: Path) -> str:
    if path.suffix == ".safetensors":
        data, how = damaged_tensors(draw, path.read_bytes())
        path.write_bytes(data)
        return how
    if path.suffix == ".json":
        data, how = damaged_json(draw, json.loads(path.read_text()))
        path.write_bytes(data)
        return how
    lines = path.read_bytes().split(b"\n")
    number = draw.randrange(len(lines))
    if draw.random() < 0.1:
        del lines[number]
        how = "deleted"
    else:
        data, how = damaged_json(draw, json.loads(lines[number] or b'{"x": 1}'))
        lines[number] = data if draw.random() < 0.1 else data.replace(b"\n", b" ")
    path.write_bytes(b"\n".join(lines))
    return f"line {number + 1}: {how}"
