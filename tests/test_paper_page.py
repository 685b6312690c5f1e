"""docs/paper.md names what exists, and quotes its numbers as the kept results have them."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "paper.md").read_text("utf-8")
NAMES = sorted(set(re.findall(r"`(goen\.[\w.]+)`", PAGE)))
PAPERS_SETS = ("svhn", "cifar100", "noise")
UNSEEN = ("cifar100", "tiny-imagenet", "mnist", "textures", "places")


def find(name: str) -> object:
    """The module, class or function of this name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(name)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_exists(name: str) -> None:
    assert find(name) is not None


def test_a_name_that_is_gone_is_seen() -> None:
    assert len(NAMES) > 40
    with pytest.raises(AttributeError):
        find("goen.detectors.NoSuchDetector")


def rows(kind: str) -> Iterator[dict[str, object]]:
    for path in sorted((ROOT / "results" / "cifar10").glob(f"{kind}.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            yield json.loads(line)


def auroc(kind: str, method: str, sets: tuple[str, ...] = PAPERS_SETS) -> str:
    """The mean over seeds of the mean AUROC over sets, as the page prints it."""
    found: dict[object, list[float]] = {}
    for row in rows(kind):
        if (row["method"], row["metric"]) == (method, "auroc") and row["dataset"] in sets:
            found.setdefault(row["seed"], []).append(float(str(row["value"])))
    assert all(len(values) == len(sets) for values in found.values())
    return f"{fmean(fmean(values) for values in found.values()):.3f}"


def accuracy(kind: str, method: str) -> str:
    """The mean over seeds, as the page prints it."""
    wanted = {"method": method, "metric": "accuracy", "dataset": "test"}
    found = [float(str(row["value"])) for row in rows(kind) if wanted.items() <= row.items()]
    return f"{fmean(found):.3f}"


def on_random_features(method: str, moments: str, sets: tuple[str, ...]) -> list[float]:
    """The mean AUROC over sets of each seed."""
    wanted = {"method": method, "moments": moments}
    found: dict[object, list[float]] = {}
    for row in rows("random-features"):
        if wanted.items() <= row.items() and row["dataset"] in sets:
            found.setdefault(row["seed"], []).append(float(str(row["value"])))
    assert all(len(values) == len(sets) for values in found.values())
    return [fmean(values) for values in found.values()]


def test_the_claim_on_random_features_is_what_was_measured() -> None:
    text = claim("…even on random features")
    for moments in ("initial", "of training images"):
        for sets in (PAPERS_SETS, UNSEEN[1:]):
            ours, knn = (on_random_features(m, moments, sets) for m in ("goen_distance", "knn"))
            assert len(ours) == len(knn) == 3
            assert f"{fmean(ours):.3f} against {fmean(knn):.3f}" in text
            differences = [a - b for a, b in zip(ours, knn, strict=True)]
            if (moments, sets) == ("initial", PAPERS_SETS):
                assert "by seed {:+.3f}, {:+.3f} and {:+.3f}".format(*differences) in text
            if (moments, sets) == ("initial", UNSEEN[1:]):
                assert min(differences) > 0


def claim(start: str) -> str:
    """The row of the page's first big table that begins so, with rows that continue it."""
    lines = PAGE.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"| {start}"))
    last = first + 1
    while lines[last].startswith("| | "):
        last += 1
    return " ".join(lines[first:last])


AUGMENTATIONS = '"strong augmentations"'
NOT_PLACES = UNSEEN[:-1]
BASELINES, ABLATE, WIDE = "baselines-[0-9]*", "ablate-*", "width-42"


@pytest.mark.parametrize(
    ("start", "kind", "method", "sets"),
    [
        ("GOEN beats", BASELINES, "goen", PAPERS_SETS),
        ("GOEN beats", BASELINES, "knn", PAPERS_SETS),
        ("GOEN beats", BASELINES, "odin", PAPERS_SETS),
        ("GOEN beats", BASELINES, "energy", PAPERS_SETS),
        ("CenterLoss costs", ABLATE, "default", PAPERS_SETS),
        ("CenterLoss costs", ABLATE, "no_center_loss", PAPERS_SETS),
        ("CenterLoss costs", WIDE, "default", PAPERS_SETS),
        ("CenterLoss costs", WIDE, "no_center_loss", PAPERS_SETS),
        ("CenterLoss hurts", ABLATE, "default_distance", PAPERS_SETS),
        ("CenterLoss hurts", ABLATE, "no_center_loss_distance", PAPERS_SETS),
        ("CenterLoss hurts", "ablate-42", "default_distance", PAPERS_SETS),
        ("CenterLoss hurts", "ablate-42", "no_center_loss_distance", PAPERS_SETS),
        ("…most of it on SVHN", ABLATE, "no_center_loss", ("svhn",)),
        ("…most of it on SVHN", ABLATE, "single_scale_no_center_loss", ("svhn",)),
        ("…most of it on SVHN", ABLATE, "no_center_loss", ("noise",)),
        ("…most of it on SVHN", ABLATE, "single_scale_no_center_loss", ("noise",)),
        ("SVHN in the calibration", ABLATE, "no_svhn_no_center_loss", PAPERS_SETS),
        ("SVHN in the calibration", ABLATE, "no_svhn_no_center_loss", UNSEEN),
        ("SVHN in the calibration", ABLATE, "no_center_loss", UNSEEN),
        ("SVHN in the calibration", "table2-42", "no_svhn", PAPERS_SETS),
        ("SVHN in the calibration", "table2-42", "default", PAPERS_SETS),
        ("SVHN in the calibration", "table2-42", "no_svhn", ("svhn",)),
        ("SVHN in the calibration", "table2-42", "default", ("svhn",)),
        ("SVHN in the calibration", "table2-42", "no_svhn", UNSEEN),
        ("SVHN in the calibration", "table2-42", "default", UNSEEN),
        (AUGMENTATIONS, "calibrated-svhn-42", "goen", PAPERS_SETS),
        (AUGMENTATIONS, "calibrated-svhn-42", "goen", NOT_PLACES),
        (AUGMENTATIONS, "calibrated-augmented-42", "goen", PAPERS_SETS),
        (AUGMENTATIONS, "calibrated-augmented-42", "goen", NOT_PLACES),
        ("calibration without real", "calibrated-noise-42", "goen", PAPERS_SETS),
        ("calibration without real", "calibrated-noise-42", "goen", NOT_PLACES),
        ("calibration without real", "calibrated-noise-augmented-42", "goen", PAPERS_SETS),
        ("calibration without real", "calibrated-noise-augmented-42", "goen", NOT_PLACES),
        ("Places in place of SVHN", "calibrated-places-42", "goen", PAPERS_SETS),
        ("Places in place of SVHN", "calibrated-places-42", "goen", NOT_PLACES),
        ("Mahalanobis is better", BASELINES, "goen_distance", PAPERS_SETS),
        ("Mahalanobis is better", BASELINES, "knn_multi_scale", PAPERS_SETS),
        ("The calibration head improves", BASELINES, "goen", UNSEEN),
        ("The calibration head improves", BASELINES, "goen_distance", UNSEEN),
        ("GOEN is stable", "seeds", "goen", PAPERS_SETS),
    ],
)
def test_numbers_are_those_of_the_kept_results(
    start: str, kind: str, method: str, sets: tuple[str, ...]
) -> None:
    assert auroc(kind, method, sets) in claim(start)


def test_what_another_processor_does_is_what_was_measured() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text("utf-8").split())
    kinds = {"ablate-42": "no_center_loss", "calibrated-svhn-42": "goen"}
    first, second = (
        [auroc(kind, method, sets) for sets in (PAPERS_SETS, UNSEEN)]
        for kind, method in kinds.items()
    )
    assert "{} on the paper's three sets and {} on unseen sets with AVX2".format(*first) in text
    assert "{} and {} with AVX-512".format(*second) in text


def test_accuracy_with_and_without_center_loss_is_what_was_measured() -> None:
    text = claim("CenterLoss improves accuracy")
    for kind, words in ((ABLATE, "{} without, {} with"), (WIDE, "{} and {} |")):
        told = words.format(*(accuracy(kind, name) for name in ("no_center_loss", "default")))
        assert told in text


def test_the_condition_numbers_are_those_of_the_kept_results() -> None:
    found = {
        (row["method"], row["metric"]): f"{float(str(row['value'])):,.0f}"
        for row in rows("geometry-42")
        if row["dataset"] == "train"
    }
    unit, raw = (
        [found[name, f"z/{kind}/condition_number_ridged"] for name in ("no_center_loss", "default")]
        for kind in ("unit", "raw")
    )
    text = claim("CenterLoss makes the covariance ill-conditioned")
    assert "{} without, {} with".format(*unit) in text
    assert "{} and {} of z itself".format(*raw) in text


def test_what_is_forgotten_is_what_was_measured() -> None:
    text = claim("OOD kinds that arrive")
    found = {
        (row["strategy"], row["after"], row["dataset"]): float(str(row["value"]))
        for row in rows("sequential-calibration-42")
        if row["metric"] == "auroc"
    }
    for name in ("places", "textures"):
        assert f"{found['alone', 'noise', name]:.3f} on {name}" in text
        assert f"({found['alone', name, name]:.3f}" in text
    for strategy, words in (("replay", "it has {} and {}"), ("joint", "({} and {})")):
        last = [f"{found[strategy, 'noise', name]:.3f}" for name in ("places", "textures")]
        assert words.format(*last) in text
    lost = max(
        found["alone", name, name] - found["alone", later, name]
        for name, later in (("svhn", "places"), ("svhn", "textures"), ("places", "textures"))
    )
    assert f"no kind has lost more than {lost:.3f}" in text


def test_what_is_said_of_adversarial_images_is_what_was_measured() -> None:
    text = claim("adversarial inputs")
    found = {
        (*(row[k] for k in ("epsilon", "objective", "dataset", "method", "metric")),): row["value"]
        for row in rows("adversarial-42")
        if row["attack"] in ("none", "pgd")
    }

    def share(*key: object) -> str:
        return f"{100 * float(str(found[key])):.1f} %"

    def area(method: str) -> str:
        return f"{float(str(found[8, 'classifier', 'test', method, 'auroc'])):.3f}"

    assert f"right on {share(8, 'classifier', 'test', 'classifier', 'accuracy')}" in text
    assert f"{area('max_softmax')} against clean images, energy {area('energy')}" in text
    assert f"KNN {area('knn')}, GOEN {area('goen')}" in text
    assert f"its distance {area('goen_distance')}, goen-m {area('goen_m')}" in text
    for method in ("goen", "goen_m"):
        assert f"({share(8, 'classifier', 'test', method, 'flagged')} flagged" in text
        lowered = share(4, method, "svhn", method, "flagged")
        without = share(0, "none", "svhn", method, "flagged")
        assert f"{lowered} ({without} without)" in text
    raised = [share(4, method, "test", method, "flagged") for method in ("goen", "goen_m")]
    assert "{} and {} raise a false alarm".format(*raised) in text
