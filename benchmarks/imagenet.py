"""Fit and score on features of ImageNet's size: seconds and memory of every detector.

    python benchmarks/imagenet.py --rows 1300000 --methods fdbd she mahalanobis
    python benchmarks/imagenet.py                       130,000 rows

After 131,072 rows they come again, since making random numbers takes longer than most methods.
Random features of width 2,048 behind a ReLU and logits of 1,000 classes, float16, in NPY files that
are mapped: 8 GB for 1,300,000 rows, in a temporary folder that is deleted. 2,000 rows are scored.
Each detector has a process of its own with one thread; the seconds are processor times. "memory" is
the peak of what the process holds itself, above what it held before the fit; pages of the mapped
files are not counted, since the system takes them back when it needs them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from goen.data.feature_files import read_features
from goen.detectors import make_detector
from goen.outputs import LinearClassifier, Outputs
from timing import header

WIDTH, CLASSES, SCORED, HELD_OUT, CHUNK = 2048, 1000, 2000, 5000, 8192
REPEATED = 16 * CHUNK
METHODS = (
    "max_softmax", "max_logit", "energy", "entropy", "gen", "kl_matching", "temperature_scaling",
    "openmax", "gradnorm", "she", "ctm", "nci", "fdbd", "mcm", "ash", "scale", "lts", "dice",
    "react", "vra", "optfs", "nnguide", "relation", "goen_m", "knn", "mahalanobis",
    "relative_mahalanobis", "neco", "residual", "vim",
)  # fmt: skip


def write(folder: Path, rows: int) -> None:
    """The features and logits of so many rows, chunk by chunk; labels and the classifier."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, WIDTH), np.float32)
    weight = centres / WIDTH**0.5
    labels = np.resize(rng.integers(0, CLASSES, REPEATED), rows)
    noise = rng.standard_normal((CHUNK, WIDTH), np.float32)
    features, logits = (
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float16, (rows, width))
        for name, width in (("features", WIDTH), ("logits", CLASSES))
    )
    for start in range(0, rows, CHUNK):
        part = slice(start, min(start + CHUNK, rows))
        if start >= REPEATED:
            before = slice(start - REPEATED, part.stop - REPEATED)
            features[part], logits[part] = features[before], logits[before]
            continue
        # The same noise again, along other axes: normal numbers take longer than a method.
        moved = np.roll(noise, start // CHUNK, axis=1)[: part.stop - part.start]
        features[part] = np.maximum(centres[labels[part]] + moved, 0)
        logits[part] = features[part].astype(np.float32) @ weight.T
    np.savez(folder / "classifier.npz", weight=weight, labels=labels)


def read(folder: Path) -> Outputs:
    """The outputs, whose features and logits are mapped."""
    features, logits = (
        torch.as_tensor(read_features(folder / f"{name}.npy").arrays["features"])
        for name in ("features", "logits")
    )
    with np.load(folder / "classifier.npz") as found:
        weight, labels = torch.from_numpy(found["weight"]), torch.from_numpy(found["labels"])
    classifier = LinearClassifier(weight, torch.zeros(CLASSES), "z")
    return Outputs(logits, {"z": features}, classifier=classifier, labels=labels)


class Peak:
    """The most memory that this process held for itself since the start, in MB."""

    def __init__(self) -> None:
        self.before = self.most = own_mb()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, own_mb())
            time.sleep(0.01)


def own_mb() -> float:
    """Resident memory that belongs to no file, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def measure(folder: Path, method: str) -> dict[str, float]:
    """Seconds of fit and of score, and the peaks of their memory."""
    torch.set_num_threads(1)
    outputs = read(folder)
    assert outputs.labels is not None
    detector, peak = make_detector(method), Peak()
    started = time.process_time()
    detector.fit(outputs, outputs.labels, held_out=outputs[:HELD_OUT])
    fitted, in_fit = time.process_time() - started, peak.most - peak.before
    started = time.process_time()
    detector.score(outputs[-SCORED:])
    score = time.process_time() - started
    return {"fit": fitted, "score": score, "fit_mb": in_fit, "mb": peak.most - peak.before}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=130_000)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--folder", type=Path, help="where the files are made, for an hour")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(measure(arguments.folder, arguments.job)))
        return 0
    torch.set_num_threads(1)
    header()
    print(f"{arguments.rows:,} rows\n\n| method | fit, s | score, s | memory, MB |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        write(Path(name), arguments.rows)
        for method in arguments.methods:
            command = [sys.executable, __file__, "--job", method, "--folder", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            numbers = f"{found['fit']:.1f} | {found['score']:.2f} | {found['mb']:,.0f}"
            print(f"| `{method}` | {numbers} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
