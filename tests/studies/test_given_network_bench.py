"""``goen.bench``: the detectors of one model, one table, the numbers of each called by itself."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import goen
from goen.data import OodSet, Protocol
from goen.detectors import (
    DETECTORS,
    KNN,
    ODIN,
    Detector,
    GoenM,
    Mahalanobis,
    Perturbed,
    make_detector,
)
from goen.detectors.tuned import SEARCHED, TUNED
from goen.errors import GoenWarning, UsageError
from goen.features.extractor import FeatureExtractor
from goen.features.precomputed import Precomputed
from goen.io.results import Group, Origin, Result, read_results
from goen.metrics import Ranking, ood_metrics
from goen.models import NetworkConfig, ResNet18
from goen.studies.given_network import ModelSettings, detector_methods, open_network
from goen.studies.given_network_bench import BenchTable, bench, fit_command
from goen.studies.methods import Method
from tests.own_model import LAYERS, DigitNet, digits, preprocess, trained

SETTINGS: ModelSettings = {"layers": LAYERS, "preprocess": preprocess}
NAMES = ("energy", "knn", "vim", "goen_m", "goen_m_last", "temperature_scaling", "odin")


def few() -> Protocol:
    p = digits()
    return Protocol.from_sets(
        p.train.take(range(300)),
        p.validation.take(range(150)),
        p.test.take(range(120)),
        {
            "near": {"unseen": p.evaluation["unseen-digits"].images.take(range(60))},
            "far": {n: p.evaluation[n].images.take(range(50)) for n in ("photographs", "noise")},
        },
        calibration_ood={},
        name="some digits",
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchTable, Path]:
    out = tmp_path_factory.mktemp("own") / "bench"
    return bench(trained(), few(), NAMES, out=out, **SETTINGS), out


def test_the_numbers_are_those_of_the_detectors_called_one_by_one(
    table: tuple[BenchTable, Path],
) -> None:
    p = few()
    network = FeatureExtractor(trained(), LAYERS, preprocess=preprocess)
    found = {(r.method, r.dataset): r for r in table[0].results if r.metric == "auroc"}
    for name in NAMES:
        detector = make_detector(name)
        passing = Perturbed(network) if name == "odin" else network
        train, held_out, test = (
            goen.extract(passing, images) for images in (p.train, p.calibration_id, p.test)
        )
        assert train.labels is not None
        if detector.needs_fit:
            detector.fit(train, train.labels, held_out=held_out)
        at_home = detector.score(test).numpy()
        for dataset, ood in p.evaluation.items():
            measured = ood_metrics(
                at_home, detector.score(goen.extract(passing, ood.images)).numpy()
            )
            row = found[name, dataset]
            assert row.value == pytest.approx(measured.auroc, abs=1e-4)
            assert (row.low, row.high) == pytest.approx(
                (measured.auroc_low, measured.auroc_high), abs=1e-3
            )


def test_a_network_that_hardly_classifies_is_warned_of(
    table: tuple[BenchTable, Path], tmp_path: Path
) -> None:
    with pytest.warns(GoenWarning, match=r"of the test images, no better than.*none \(--weights\)"):
        bench(DigitNet(), few(), ["energy"], out=tmp_path / "bench", **SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench(trained(), few(), ["energy"], out=table[1].parent / "again", **SETTINGS)


def test_a_row_has_means_costs_and_a_p_value_and_the_best_is_first(
    table: tuple[BenchTable, Path],
) -> None:
    rows: list[dict[str, Any]] = list(table[0].rows)
    assert {row["method"] for row in rows} == {*NAMES}
    means = [row["mean_auroc"] for row in rows]
    assert means == sorted(means, reverse=True)
    for row in rows:
        values = {name: row[f"{name}/auroc"] for name in ("unseen", "photographs", "noise")}
        assert row["mean_auroc"] == pytest.approx(np.mean([*values.values()]))
        assert row["near_auroc"] == values["unseen"]
        assert row["far_auroc"] == pytest.approx((values["photographs"] + values["noise"]) / 2)
        assert row["score_ms_per_image"] > 0
        assert row["network_ms_per_image"] > 0
        assert 0 <= row["p_value"] <= 1
    assert table[0].best == rows[0]["method"]
    assert list(table[0].to_pandas().index) == [row["method"] for row in rows]


def test_it_prints_as_a_table_that_ends_with_the_best(table: tuple[BenchTable, Path]) -> None:
    lines = str(table[0]).splitlines()
    assert lines[0].split() == ["mean", "near", "far", *few().evaluation, "FPR95", "ms/image"]
    best = table[0].titles[table[0].best]
    assert lines[1].startswith(best)
    assert lines[-1].startswith(f"best: {best} (mean AUROC 0.")
    assert lines[-1].endswith(f"make it a gate with: goen fit --detector {table[0].best}")
    html = table[0]._repr_html_()
    assert best in html
    assert "<table" in html


def test_ood_images_choose_the_parameters_of_a_row_of_its_own(tmp_path: Path) -> None:
    p, digit = few(), digits()
    chosen_on = digit.calibration_ood["photographs"].take(range(40))
    tuning = replace(p, calibration_ood={"other photographs": chosen_on})
    found = bench(
        trained(), tuning, ["energy", "knn"], out=tmp_path / "bench", tune=True, **SETTINGS
    )
    assert [*found.titles] == ["energy", "knn", "knn_tuned"]
    assert found.titles["knn_tuned"] == "KNN, tuned on OOD"
    network = FeatureExtractor(trained(), LAYERS, preprocess=preprocess)
    train, held_out, test, ood, noise = (
        goen.extract(network, images)
        for images in (
            p.train,
            p.calibration_id,
            p.test,
            chosen_on,
            p.evaluation["noise"].images,
        )
    )
    assert train.labels is not None
    best = make_detector("knn_tuned").fit(train, train.labels, held_out=held_out, ood={"o": ood})
    expected = ood_metrics(best.score(test).numpy(), best.score(noise).numpy()).auroc
    row = next(
        r
        for r in found.results
        if (r.method, r.dataset, r.metric) == ("knn_tuned", "noise", "auroc")
    )
    assert row.value == pytest.approx(expected, abs=1e-4)
    assert row.calibrated_on == (p.calibration_id.identity, chosen_on.identity)
    assert not row.seen_in_calibration
    plain = next(r for r in found.results if (r.method, r.dataset) == ("knn", "noise"))
    assert plain.calibrated_on == ()
    every = detector_methods(network, tune=True)[0]
    assert {m.key for m in every if m.section == "tuned"} == {name + TUNED for name in SEARCHED}


def test_images_are_normalised_as_the_protocol_says() -> None:
    mean, std = (0.3, 0.4, 0.5), (0.2, 0.3, 0.25)
    plain, asked = few(), replace(few(), normalisation=(mean, std))
    given: ModelSettings = {"layers": LAYERS}

    def extracted(protocol: Protocol, settings: ModelSettings) -> Tensor:
        network = open_network(trained(), protocol, settings).network.eval()
        with torch.no_grad():
            logits: Tensor = network(torch.from_numpy(plain.test.read(range(4)))).logits
        return logits

    by_hand = extracted(plain, {**given, "preprocess": goen.Preprocess(mean, std)})
    assert torch.equal(extracted(asked, given), by_hand)
    assert not torch.equal(extracted(plain, given), by_hand)
    # What is given, or what the model brings, comes first.
    own = extracted(plain, {**given, "preprocess": preprocess})
    assert torch.equal(extracted(asked, {**given, "preprocess": preprocess}), own)
    extractor = FeatureExtractor(trained(), LAYERS)
    opened = open_network(extractor, asked).network
    assert opened is extractor


def test_nothing_is_written_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    small = bench(trained(), few(), ["energy", KNN(k=3)], **SETTINGS)
    assert {row["method"] for row in small.rows} == {"energy", "KNN(k=3)"}
    assert not [*tmp_path.iterdir()]


def test_a_detector_of_ones_own_settings_differs_from_the_default(
    table: tuple[BenchTable, Path],
) -> None:
    other = bench(trained(), few(), [KNN(k=100), Mahalanobis()], **SETTINGS)
    by_method = {row["method"]: row["mean_auroc"] for row in other.rows}
    named = {row["method"]: row["mean_auroc"] for row in table[0].rows}
    assert by_method["KNN(k=100)"] != named["knn"]
    assert other.next_step in (
        "Gate.fit(..., detector=KNN(k=100))",
        "Gate.fit(..., detector=Mahalanobis())",
    )


def test_another_call_into_the_folder_adds_its_detectors(
    table: tuple[BenchTable, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, out = table
    monkeypatch.setattr("goen.studies.networks.stream", None)  # no image passes again
    both = bench(trained(), few(), ["mahalanobis"], out=out, **SETTINGS)
    assert {row["method"] for row in both.rows} == {*NAMES, "mahalanobis"}
    assert read_results(out / "results.jsonl") == list(both.results)
    kept = {(r.method, r.dataset, r.metric): r.value for r in both.results}
    for r in first.results:
        if r.metric != "p_against_best":
            assert kept[r.method, r.dataset, r.metric] == r.value
    tested = [r for r in both.results if r.metric == "p_against_best" and r.dataset == "noise"]
    assert len(tested) == len(NAMES)  # each but the best, once
    summary = json.loads((out / "run.json").read_text())
    assert list(summary["titles"]) == [*NAMES, "mahalanobis"]
    assert len(summary["ranking"]["means"]) == len(NAMES) + 1


@pytest.mark.parametrize("what", ["network", "images"])
def test_a_folder_with_another_comparison_is_not_replaced(
    table: tuple[BenchTable, Path], what: str
) -> None:
    _, out = table
    before = (out / "results.jsonl").read_bytes()
    model, p = trained(), few()
    if what == "network":
        with torch.no_grad():
            model.head.weight[0, 0] += 0.5
        message = "another study .with another network"
    else:
        p = replace(p, test=digits().test.take(range(121)))
        message = "another study .on other images of test"
    with pytest.raises(UsageError, match=message):
        bench(model, p, ["energy"], out=out, **SETTINGS)
    assert (out / "results.jsonl").read_bytes() == before


def test_without_names_every_detector_takes_part_that_needs_no_other_network() -> None:
    p = replace(few(), evaluation={"noise": few().evaluation["noise"]})
    whole = bench(trained(), p, **SETTINGS)
    rows = {row["method"] for row in whole.rows}
    assert rows | {*whole.skipped} >= {*DETECTORS} - {"uncertainty"}
    assert "as each needs a network of its own, which goen trains: MC dropout;" in str(whole)


def test_a_detector_that_cannot_be_fitted_is_left_out_unless_it_is_named() -> None:
    early: ModelSettings = {"layers": ["early"], "preprocess": preprocess}
    p = replace(few(), evaluation={"noise": few().evaluation["noise"]})
    whole = bench(trained(), p, **early)
    assert "no linear classifier" in whole.skipped["vim"]
    assert "vim" not in {row["method"] for row in whole.rows}
    with pytest.raises(UsageError, match="no linear classifier"):
        bench(trained(), p, ["vim"], **early)


def test_ood_images_fit_only_what_is_named_so() -> None:
    p = replace(few(), calibration_ood={"noise": digits().calibration_ood["noise"].take(range(60))})
    both = bench(trained(), p, ["goen_m", "goen_m_ood"], **SETTINGS)
    seen = {(r.method, r.dataset) for r in both.results if r.seen_in_calibration}
    assert seen == {("goen_m_ood", "noise")}
    assert both.ranking is not None
    assert both.ranking.sets == ("unseen", "photographs")  # noise is of a kind that calibrated
    rows: dict[str, dict[str, Any]] = {str(row["method"]): dict(row) for row in both.rows}
    for row in rows.values():  # all means are over the same sets
        assert row["far_auroc"] == row["photographs/auroc"]
        mean = (row["unseen/auroc"] + row["photographs/auroc"]) / 2
        assert row["mean_auroc"] == pytest.approx(mean)
    text = str(both)
    assert "over the OOD sets but noise (†: other images of this kind fitted the detector)" in text
    marked = [line for line in text.splitlines() if "†" in line and "mean" not in line.lower()]
    assert [line.split("  ")[0] for line in marked] == [both.titles["goen_m_ood"]]
    assert f"{rows['goen_m_ood']['noise/auroc']:.4f}†" in marked[0]
    make = fit_command("goen fit --model a:b")
    assert make("goen_m_ood") == "goen fit --model a:b --detector goen_m --ood OTHER_OOD"
    assert make("knn_tuned") == "goen fit --model a:b --detector knn_tuned --ood OTHER_OOD"
    assert make("knn") == "goen fit --model a:b --detector knn"
    assert make("KNN(k=3)") == ""
    with pytest.raises(UsageError, match=r"Energy\(\) uses no OOD images"):
        bench(trained(), p, ["energy_ood"], **SETTINGS)


@pytest.mark.parametrize(
    ("detectors", "message"),
    [
        ("knn", r"detectors are a list, got one: write detectors=\['knn'\]"),
        (["knm"], "Unknown detector 'knm'"),
        (["knn", "energy", "knn"], "knn is named twice"),
    ],
)
def test_a_wrong_list_is_one_sentence(detectors: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bench(trained(), few(), detectors, **SETTINGS)  # type: ignore[arg-type]


def test_another_number_of_classes_is_an_error() -> None:
    seven = few()
    named = tuple("abcdef")
    sets = {
        name: replace(images, labels=np.minimum(images.labels, 5), classes=named)
        for name in ("train", "validation", "test")
        for images in [getattr(seven, name)]
    }
    with pytest.raises(UsageError, match="7 logits, but there are 6 class names"):
        bench(trained(), replace(seven, **sets), ["energy"], **SETTINGS)


def test_flipping_the_labels_of_near_and_far_moves_the_means() -> None:
    p = few()
    swapped = {
        name: OodSet(ood.images, "far" if ood.group == "near" else "near")
        for name, ood in p.evaluation.items()
    }
    one, other = (
        bench(trained(), replace(p, evaluation=sets), ["energy"], **SETTINGS).rows[0]
        for sets in (p.evaluation, swapped)
    )
    assert (one["near_auroc"], one["far_auroc"]) == (other["far_auroc"], other["near_auroc"])


def test_gradients_are_taken_with_the_detectors_own_settings() -> None:
    p = replace(few(), evaluation={"noise": few().evaluation["noise"]})
    both = bench(trained(), p, [ODIN(), ODIN(epsilon=0.1)], **SETTINGS)
    first, second = (row["mean_auroc"] for row in both.rows)
    assert first != second
    assert GoenM(layers="last").feature is None


def test_a_network_that_gives_outputs_itself_is_taken_as_it_is() -> None:
    network = ResNet18(NetworkConfig(num_classes=7, width=2)).eval()
    p = replace(few(), evaluation={"noise": few().evaluation["noise"]})
    (row,) = bench(network, p, ["mahalanobis_pp"]).rows
    train, test, noise = (
        goen.extract(network, images) for images in (p.train, p.test, p.evaluation["noise"].images)
    )
    assert train.labels is not None
    detector = make_detector("mahalanobis_pp").fit(train, train.labels)
    expected = ood_metrics(detector.score(test).numpy(), detector.score(noise).numpy()).auroc
    assert row["mean_auroc"] == pytest.approx(expected, abs=1e-4)


def by_hand(*, ranked: bool = True) -> BenchTable:
    """Three detectors on four sets; ``noise`` fitted the second, the third lacks one set."""
    groups: dict[str, Group] = {"near-a": "near", "far-a": "far", "far-b": "far", "noise": "noise"}
    areas = {"knn": (0.6, 0.9, 0.8, 0.9), "gen_ood": (0.5, 0.8, 0.8, 1.0), "own": (0.7, 0.6, 0.9)}
    found: list[Result] = []
    for method, values in areas.items():
        origin = Origin(method, "full", 0, "net", ())
        cost = {"accuracy": 0.9, "fit_seconds": 2.0, "score_ms_per_image": len(found) / 4}
        found += origin.rows("test", "id", {**cost, "network_ms_per_image": 1.5})
        for place, (name, area) in enumerate(zip(groups, values, strict=False)):
            ends = {"auroc_low": area - 0.01, "auroc_high": area + 0.01} if place else {}
            rates = {"fpr95_ood_positive": 1 - area, "fpr95_id_positive": (1 - area) / 2}
            seen = (method, name) == ("gen_ood", "noise")
            found += origin.rows(name, groups[name], {"auroc": area, **ends, **rates}, seen=seen)
    ranking = Ranking(
        ("near-a", "far-a", "far-b"), {"knn": 2.3 / 3, "gen_ood": 0.7}, {"gen_ood": 0.2}
    )
    titles = {"own": "Own", "gen_ood": "GEN", "knn": "KNN"}
    return BenchTable(found, ranking if ranked else None, titles, {"vim": "No weights."})


def test_a_table_worked_by_hand() -> None:
    lines = str(by_hand()).splitlines()
    assert lines[:4] == [
        "        mean    near     far  near-a   far-a   far-b    noise  FPR95  ms/image",
        "KNN   0.7667  0.6000  0.8500  0.6000  0.9000  0.8000   0.9000  0.117     0.000",
        "GEN  ≈0.7000  0.5000  0.8000  0.5000  0.8000  0.8000  1.0000†  0.150     4.000",
        "Own      n/a  0.7000  0.7500  0.7000  0.6000  0.9000      n/a  0.133     8.000",
    ]
    assert lines[4] == ""
    assert lines[5].startswith(
        "Mean AUROC over the OOD sets but noise (†: other images of this kind"
    )
    assert lines[6] == "Left out: vim. No weights."
    assert lines[8:] == [
        "best: KNN (mean AUROC 0.767), within chance of it: GEN (0.700); make it a gate with: "
        "goen fit --detector knn"
    ]


def test_rows_worked_by_hand() -> None:
    best, second, partly = by_hand().rows
    assert (best["p_value"], second["p_value"]) == (1.0, 0.2)
    assert best["mean_auroc"] == pytest.approx(2.3 / 3)
    assert not {"p_value", "mean_auroc", "noise/auroc"} & {*partly}
    # The first set has no interval.
    assert (best["far-a/auroc_low"], best["far-a/auroc_high"]) == (0.89, 0.91)
    assert "near-a/auroc_low" not in best
    assert by_hand().auroc("knn", ["far-a", "noise"]) == pytest.approx(0.9)


def test_without_a_detector_that_was_measured_on_every_set_there_is_no_best() -> None:
    without = by_hand(ranked=False)
    assert without.best == ""
    assert str(without).endswith("No detector was measured on every OOD set.")
    assert [row["method"] for row in without.rows] == ["own", "gen_ood", "knn"]
    means = [row["mean_auroc"] for row in without.rows]
    assert means == pytest.approx([2.2 / 3, 3.1 / 4, 3.2 / 4])
    assert "≈" not in str(without).split("Mean AUROC")[0]


def test_a_group_that_is_all_sets_has_no_column_of_its_own() -> None:
    table = by_hand()
    near = [r for r in table.results if r.dataset in ("test", "near-a")]
    ranking = Ranking(("near-a",), {"own": 0.7, "knn": 0.6, "gen_ood": 0.5}, {})
    only = replace(table, results=near, ranking=ranking)
    assert str(only).splitlines()[0].split() == ["mean", "near-a", "FPR95", "ms/image"]
    assert not any("near_auroc" in row for row in only.rows)


def test_a_detector_is_a_method_by_what_it_declares() -> None:
    names = (
        "energy",
        "knn",
        "goen_m",
        "goen_m_ood",
        "goen",
        "goen_ood",
        "knn_tuned",
        "kl_matching",
    )
    methods, skipped = detector_methods(torch.nn.Linear(2, 2), [*names, KNN(k=3), ODIN()])
    assert not skipped
    all_three = ("train", "calibration", "ood")
    assert [(m.key, m.title, m.section, m.fits_on) for m in methods] == [
        ("energy", "Energy", "post-hoc", ()),
        ("knn", "KNN", "post-hoc", ("train",)),
        ("goen_m", "goen-m", "goen", ("train", "calibration")),
        ("goen_m_ood", "goen-m, fitted with OOD", "goen", all_three),
        ("goen", "GOEN, distance only", "goen", ("train",)),
        ("goen_ood", "GOEN, fitted with OOD", "goen", all_three),
        ("knn_tuned", "KNN, tuned on OOD", "tuned", all_three),
        ("kl_matching", "KL matching", "newer", ("train", "calibration")),
        ("KNN(k=3)", "KNN(k=3)", "post-hoc", ("train",)),
        ("ODIN()", "ODIN()", "post-hoc", ()),
    ]
    *plain, last = methods
    assert {m.forward_mode for m in plain} == {"plain"}
    assert isinstance(last.forward_mode, ODIN)
    assert {m.network for m in methods} == {"given"}


def test_features_without_logits_leave_out_what_reads_them() -> None:
    features = {has: Precomputed({"z": 3}, 2, has_logits=has) for has in (True, False)}
    gradient, none = (
        "It takes gradients",
        "It reads the logits of a classifier, and there are none",
    )
    for has, network in features.items():
        methods, skipped = detector_methods(network)
        assert {*skipped} | {m.key for m in methods} == {*DETECTORS} - {"uncertainty"}
        assert skipped["odin"].startswith(gradient)
        assert ("energy" in skipped) == (not has)
        assert all(why.startswith((gradient, none)) for why in skipped.values())
        assert "knn" not in skipped
    (method,) = detector_methods(features[False], ["goen_m"])[0]
    assert "logit_cues" in repr(_of(method))
    (method,) = detector_methods(features[True], ["goen_m"])[0]
    assert "logit_cues" not in repr(_of(method))


def _of(method: Method) -> Detector:
    """What the method fits."""
    detector = method.fit.args[0]  # type: ignore[attr-defined]
    assert isinstance(detector, Detector)
    return detector
