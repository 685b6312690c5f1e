"""The ablation: the paper's variants and those it leaves out, compared on the same images."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from goen.data import Protocol
from goen.errors import UsageError
from goen.io.results import Result, read_results, read_scores
from goen.metrics import holm, paired_auroc_test
from goen.report.pages.bench import ablate_tables
from goen.report.summary import read_summary
from goen.studies import PRESETS, VARIANTS, AblateConfig, ablate
from tests.tiny import FAST, tiny_protocol

Finished = tuple[Path, Protocol, list[Result]]
ROWS = [
    *VARIANTS,
    "default_distance",
    "no_center_loss_distance",
    "single_scale_distance",
    "single_scale_no_center_loss_distance",
    "concat_distance",
    "concat_no_center_loss_distance",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("ablate")
    protocol = tiny_protocol()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]
        results = ablate(AblateConfig(preset="fast"), protocol, folder / "a")
    return folder, protocol, results


def test_every_variant_is_there_with_and_without_its_head(finished: Finished) -> None:
    folder, protocol, results = finished
    assert read_results(folder / "a" / "results.jsonl") == results
    assert list(dict.fromkeys(r.method for r in results)) == ROWS
    aurocs = {(r.method, r.dataset) for r in results if r.metric == "auroc"}
    assert aurocs == {(row, name) for row in ROWS for name in protocol.evaluation}


def test_variants_that_calibrate_differently_share_their_network(finished: Finished) -> None:
    folder, _, results = finished
    network = {r.method: r.network for r in results}
    assert network["default"] == network["no_svhn"]
    assert network["no_center_loss"] == network["no_svhn_no_center_loss"]
    assert len(set(network.values())) == 6
    assert len(list((folder / "stages").glob("backbone-*"))) == 6


def test_only_what_calibrated_is_called_seen(finished: Finished) -> None:
    _, _, results = finished
    seen = {(r.method, r.dataset) for r in results if r.seen_in_calibration}
    for variant in VARIANTS:
        expected = {"noise"} if "no_svhn" in variant else {"noise", "photographs"}
        assert {name for row, name in seen if row == variant} == expected
        assert not {name for row, name in seen if row == f"{variant}_distance"}


def test_the_tests_are_paired_and_corrected(finished: Finished) -> None:
    folder, protocol, results = finished
    scores = read_scores(folder / "a" / "scores.safetensors")

    def p(one: str, other: str, name: str) -> float:
        test, ood = scores["test"], scores[name]
        return paired_auroc_test(
            id_a=test[one], ood_a=ood[one], id_b=test[other], ood_b=ood[other]
        ).p_value

    found = {(r.method, r.dataset, r.metric): r.value for r in results}
    for name in protocol.evaluation:
        others = [row for row in ROWS if row != "default"]
        expected = holm([p("default", row, name) for row in others])
        assert np.allclose([found[row, name, "p_against_default"] for row in others], expected)
        assert found["no_center_loss", name, "p_of_center_loss"] == p(
            "default", "no_center_loss", name
        )
        alone = found["concat_no_center_loss_distance", name, "p_of_center_loss"]
        assert alone == p("concat_distance", "concat_no_center_loss_distance", name)
        assert ("concat", name, "p_of_center_loss") not in found


def test_the_tables_hold_the_differences(finished: Finished) -> None:
    folder, protocol, results = finished
    summary = read_summary(folder / "a")
    tables = {table.name: table for table in ablate_tables(results, summary)}
    value = {(r.method, r.dataset): r.value for r in results if r.metric == "auroc"}
    first = next(iter(protocol.evaluation))
    effect = tables["center_loss"]
    assert len(effect.rows) == 7
    assert effect.rows[0].cells[0].value == value["no_center_loss", first] - value["default", first]
    table = tables["differences"]
    assert len(table.rows) == len(ROWS) - 1
    concat = next(row for row in table.rows if row.label == VARIANTS["concat"].title)
    assert concat.cells[0].value == value["concat", first] - value["default", first]
    assert any("places" in note for note in tables["auroc"].notes)  # what is missing is named


def test_an_unknown_variant_is_an_error(tmp_path: Path, finished: Finished) -> None:
    with pytest.raises(UsageError, match="Did you mean 'concat'"):
        ablate(AblateConfig(("conkat",)), finished[1], tmp_path)


def test_a_variant_without_a_set_that_calibrates_it_is_an_error(tmp_path: Path) -> None:
    protocol = tiny_protocol()
    photographs = {"photographs": protocol.calibration_ood["photographs"]}
    for sets, message in (
        ({}, r"'default, with CenterLoss' .* sets that calibrate are: none\."),
        (photographs, r"'NoSVHN .* sets that calibrate are: photographs\."),
    ):
        with pytest.raises(UsageError, match=message):
            ablate(AblateConfig(), replace(protocol, calibration_ood=sets), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_may_be_a_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Unknown preset 'none'"):  # after the folder was made
        ablate(AblateConfig(preset="none"), tiny_protocol(), str(tmp_path / "out"))
    assert (tmp_path / "out").is_dir()
