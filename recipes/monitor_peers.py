"""Drift detectors of other libraries on the streams of recipes/monitor_cifar10.py.

    python recipes/monitor_peers.py runs/monitor-cifar10-streams.npz

Needs NumPy and river or alibi-detect, in an environment of their own (goen needs neither): each is
used where it can be imported. Writes the image of the first alarm of each order to
results/monitor/peers.jsonl; lines of detectors that are not run this time stay.

River's detectors have their default settings. alibi-detect's is asked for an expected run time of
10,000 images without a change, the length of those streams, in a window of 100: its thresholds are
simulated. It takes milliseconds per image, so --orders 10 is enough for it.
"""

import argparse
import importlib.util
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

OUT = Path(__file__).parents[1] / "results" / "monitor" / "peers.jsonl"

Detect = Callable[[np.ndarray], int | None]


def river_detectors() -> dict[str, Detect]:
    """ADWIN and Page-Hinkley on the scores."""
    from river import drift

    def first(make: type) -> Detect:
        def detect(scores: np.ndarray) -> int | None:
            detector = make()
            for number, score in enumerate(scores.tolist(), 1):
                detector.update(score)
                if detector.drift_detected:
                    return number
            return None

        return detect

    return {"river ADWIN": first(drift.ADWIN), "river Page-Hinkley": first(drift.PageHinkley)}


def alibi_detectors(held_out: np.ndarray) -> dict[str, Detect]:
    """The online Cramér-von Mises detector on the scores."""
    from alibi_detect.cd import CVMDriftOnline

    detector = CVMDriftOnline(
        held_out.astype(np.float32), ert=10_000, window_sizes=[100], n_bootstraps=25_000,
        verbose=False,
    )  # fmt: skip

    def detect(scores: np.ndarray) -> int | None:
        detector.reset_state()
        for number, score in enumerate(scores.astype(np.float32), 1):
            if detector.predict(np.array([score]), return_test_stat=False)["data"]["is_drift"]:
                return number
        return None

    return {"alibi-detect online CVM": detect}


def main() -> None:
    """Run what is here on every stream, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", type=Path)
    parser.add_argument("--orders", type=int, default=100, help="at most so many of each change")
    given = parser.parse_args()
    kept = np.load(given.streams)
    detectors: dict[str, Detect] = {}
    if importlib.util.find_spec("river"):
        detectors |= river_detectors()
    if importlib.util.find_spec("alibi_detect"):
        detectors |= alibi_detectors(kept["held_out"])
    before = OUT.read_text(encoding="utf-8").splitlines() if OUT.is_file() else []
    lines = [line for line in map(json.loads, before) if line["detector"] not in detectors]
    for name, detect in detectors.items():
        library = name.partition(" ")[0]
        for key in (key for key in kept.files if key.endswith("/scores")):
            alarms = [detect(scores) for scores in kept[key][: given.orders]]
            change = key.removesuffix("/scores")
            lines.append({"change": change, "detector": name, "alarms": alarms,
                          "version": version(library)})  # fmt: skip
            print(name, change, alarms[:10], flush=True)
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
