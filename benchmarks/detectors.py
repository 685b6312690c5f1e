"""Fit and score of every detector against OpenOOD's and pytorch-ood's, on the same outputs.

    python benchmarks/detectors.py --openood FOLDER     in the environment of recipes/peers.py
    python benchmarks/detectors.py --openood FOLDER --methods fdbd vim --repeats 9

20,000 rows to fit on, 20,000 to score, width 512, 100 classes, float32, one thread. Goal: each part
takes at most 1.1 of the faster peer's time. goen and the peers take turns; the numbers are
processor times, the least of all rounds, so that other work on the machine counts little.

Everybody has the features in memory and no images. A peer that reads features computes the logits
of the last layer itself (the line "last layer" is what that takes), OpenOOD in batches of 256;
goen's outputs hold the logits. The score of a peer that takes 5 times as long is extrapolated from
400 rows.
"""

import argparse
import contextlib
import gc
import importlib
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from goen.detectors import DETECTORS
from goen.outputs import LinearClassifier, Outputs
from timing import header

sys.path.insert(0, str(Path(__file__).parents[1]))
from recipes.peers import Case, Data, Head, Score, cases, openood_fitted, openood_modules
from tests.torchvision_import import import_torchvision

WIDTH, CLASSES, ROWS, HELD_OUT = 512, 100, 20_000, 5_000
GOAL = 1.1
PEERS = ("OpenOOD", "pytorch-ood")
LEFT_OUT = {
    "adascale", "adascale_l", "odin", "i_odin",  # their time is that of the network's passes
    "flow", "goen", "uncertainty",  # train a network or a head, or read what a network gives
}  # fmt: skip
Fit = Callable[[], Score]
# Of a peer that takes so many times as long, the first rows are enough.
FAR, FIRST = 5, 400


class Times(NamedTuple):
    """Seconds."""

    fit: float
    score: float


def data() -> Data:
    """Features behind a ReLU, around one centre per class, with a classifier that reads them."""
    torch.manual_seed(0)
    centres = torch.randn(CLASSES, WIDTH)
    weight = centres / WIDTH**0.5
    classifier = LinearClassifier(weight, torch.randn(CLASSES) / 10, "z")

    def outputs(count: int) -> Outputs:
        labels = torch.randint(0, CLASSES, (count,))
        features = torch.relu(centres[labels] + torch.randn(count, WIDTH))
        logits = classifier.logits(features)
        return Outputs(logits, {"z": features}, classifier=classifier, labels=labels)

    train = outputs(ROWS)
    assert train.labels is not None
    return Data(train, train.labels, outputs(HELD_OUT), outputs(ROWS // 2), outputs(ROWS // 2))


def fits(case: Case, given: Data, peers: ModuleType | None, has_openood: bool) -> dict[str, Fit]:
    """How goen's detector and each peer are fitted."""

    def own() -> Score:
        return case.detector.fit(given.train, given.labels, held_out=given.held_out).score

    found: dict[str, Fit] = {"goen": own}
    if case.openood is not None and has_openood:
        module, name, args = case.openood
        found["OpenOOD"] = lambda: openood_fitted(module, name, args, given)
    if case.pytorch_ood is not None and peers is not None:
        fit, head = case.pytorch_ood, Head(given).eval()
        found["pytorch-ood"] = lambda: fit(peers, head, given)
    return found


def measure(found: dict[str, Fit], scored: Outputs, repeats: int) -> dict[str, Times]:
    """The least seconds of fit and of score of each, which take turns."""
    least: dict[str, Times] = {}
    for _ in range(repeats):
        for who, fit in found.items():
            if least and who in least and least[who].score > FAR * least["goen"].score:
                continue
            gc.collect()
            silent = io.StringIO()
            with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
                fitted, score = timed(fit)
                first, _ = timed(lambda s=score: s(scored[:FIRST]))
                taken = first * len(scored) / FIRST
                if who == "goen" or taken < FAR * least["goen"].score:
                    taken, _ = timed(lambda s=score: s(scored))
            known = least.get(who, Times(fitted, taken))
            least[who] = Times(min(known.fit, fitted), min(known.score, taken))
    return least


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """The processor time of an action, and what it returns."""
    started = time.process_time()
    result = action()
    return time.process_time() - started, result


def row(method: str, least: dict[str, Times]) -> tuple[str, bool]:
    """The row of the table, and whether both goals are met."""
    cells, met = [], True
    for part, few in ((0, 1e-3), (1, 0.0)):
        own = least["goen"][part]
        others = {who: times[part] for who, times in least.items() if who != "goen"}
        cells.append(f"{1000 * own:.1f}")
        cells += [f"{1000 * others[who]:.1f}" if who in others else "" for who in PEERS]
        over = own / max(min(others.values()), 1e-9) if others else None
        within = over is None or over <= GOAL or own < few
        cells.append("" if over is None else f"{over:.2f}{'' if within else ' !'}")
        met &= within
    return f"| `{method}` | {' | '.join(cells)} |", met


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openood", type=Path, help="a checkout of OpenOOD")
    parser.add_argument("--methods", nargs="*", help="all if none is given")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    peers = None
    with contextlib.suppress(ImportError):
        import_torchvision()
        peers = importlib.import_module("pytorch_ood.detector")
    header(*(["pytorch-ood"] if peers else []))
    if arguments.openood is not None:
        openood_modules(arguments.openood)
    given = data()
    scored = given.scored
    features, classifier = scored.feature("z"), scored.classifier
    assert classifier is not None
    with_peers = cases(WIDTH)
    alone = {name: Case(make()) for name, make in DETECTORS.items() if name not in with_peers}
    layer: dict[str, Fit] = {"goen": lambda: lambda _: classifier.logits(features)}
    taken = measure(layer, scored, arguments.repeats)["goen"].score
    print(f"last layer, {len(scored):,} rows: {1000 * taken:.1f} ms\n")
    print("| | fit, ms | | | | score, ms | | | |\n|---|---|---|---|---|---|---|---|---|")
    print(f"| method {2 * '| goen | OpenOOD | pytorch-ood | ratio '}|")
    met = True
    for method, case in {**with_peers, **alone}.items():
        if method in LEFT_OUT or (arguments.methods and method not in arguments.methods):
            continue
        found = fits(case, given, peers, arguments.openood is not None)
        line, within = row(method, measure(found, scored, arguments.repeats))
        met &= within
        print(line, flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
