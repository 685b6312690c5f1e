"""The paper's tables: its numbers as published, ours where they belong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from goen.errors import ArtifactError, UsageError
from goen.io.results import Origin, Result, write_results
from goen.report.paper_tables import paper_tables, read_papers_study
from goen.report.summary import Study, Summary
from goen.report.table import Table, latex, markdown

SETS = {"svhn": "far", "cifar100": "near", "noise": "noise"}
KEPT = Path(__file__).parents[2] / "results" / "cifar10"


def results_of(method: str, seed: int, aurocs: tuple[float, ...], **right: float) -> list[Result]:
    origin = Origin(method, "full", seed, "net", ("train",))
    rows = origin.rows("test", "id", right)
    for (name, group), auroc in zip(SETS.items(), aurocs, strict=True):
        seen = method == "goen" and name != "cifar100"
        rows += origin.rows(name, group, {"auroc": auroc}, seen=seen)  # type: ignore[arg-type]
    return rows


def study(command: str, results: list[Result], **config: Any) -> Study:
    settings = {"preset": "short", "budget": "full", **config}
    content = {"study": command, "data": "cifar10", "config": settings}
    return Study(results, Summary.from_json(content))


def row(table: Table, label: str, section: str = "") -> dict[str, str]:
    """What a row shows, by column; the first whose section begins so."""
    found = next(r for r in table.rows if r.label == label and r.section.startswith(section))
    return {
        name: cell.formatted + ("†" if cell.seen else "") + ("*" if cell.mark == "best" else "")
        for name, cell in zip(table.columns, found.cells, strict=True)
    }


def test_published_averages_are_the_means_of_the_published_sets() -> None:
    first, second, third = paper_tables([])
    by_line = {r.label: [cell.value for cell in r.cells] for r in first.rows}
    names = ("SVHN AUROC", "CIFAR-100 AUROC", "Synthetic AUROC", "Avg OOD AUROC")
    for *sets, average in zip(*(by_line[name] for name in names), strict=True):
        assert sum(filter(None, sets)) / 3 == pytest.approx(average, abs=1.01e-4)
    for variant in second.rows:
        _, *sets, average = (cell.value for cell in variant.cells)
        assert sum(filter(None, sets)) / 3 == pytest.approx(average, abs=1.01e-4)
    means = {r.label: r.cells[0].value or 0.0 for r in third.rows}
    assert sum(means[name] for name in names[:3]) / 3 == pytest.approx(means[names[3]], abs=1e-4)


def test_published_numbers_add_up_as_in_the_paper() -> None:
    # Sums over the lines of the paper's source, in units of its last digit.
    first = [71499, 3240, 26665, 12079, 99914, 97007, 109651, 102190]
    second = [46804, 47245, 46433, 46862]
    third = [9357, 368, 2419, 1072, 9367, 8969, 10061, 9422]
    for table, sums in zip(paper_tables([]), (first, second, third), strict=True):
        found = [sum(round(1e4 * (cell.value or 0)) for cell in r.cells) for r in table.rows]
        assert found == sums


def test_goen_of_table_1_is_the_variant_without_center_loss() -> None:
    first, second, _ = paper_tables([])
    of_goen = {r.label: r.cells[-1].value for r in first.rows}
    without = dict(zip(second.columns, second.rows[1].cells, strict=True))
    assert {name: of_goen[name] for name in without} == {k: v.value for k, v in without.items()}


def test_table_1_has_means_over_seeds_and_marks() -> None:
    bench = study(
        "bench",
        [
            *results_of("knn", 42, (0.8, 0.7, 0.9), accuracy=0.9, ece=0.1),
            *results_of("knn", 123, (0.9, 0.7, 0.8), accuracy=0.92, ece=0.2),
            *results_of("energy", 42, (0.5, 0.5, 0.5), accuracy=0.8, ece=0.3),
            *results_of("energy", 123, (0.6, 0.6, 0.6), accuracy=0.8, ece=0.3),
            *results_of("odin", 42, (0.99, 0.99, 0.99)),
            *results_of("goen", 42, (0.95, 0.6, 0.96)),
            *results_of("goen", 123, (0.97, 0.6, 0.96)),
        ],
    )
    table = paper_tables([bench])[0]
    ours = "goen, preset short, budget full, seeds 42, 123"
    assert [section for section, _ in table.sections()] == ["the paper", ours]
    average = row(table, "Avg OOD AUROC", ours)
    assert average["KNN"] == "0.8000 ± 0.0000*"
    assert average["Energy"] == "0.5500 ± 0.0707"
    assert average["ODIN"] == "0.9900"  # one seed does not compete
    assert average["GOEN"] == "0.8400 ± 0.0047†"  # nor do numbers of kinds that calibrated
    assert average["StandardNN"] == "n/a"
    assert row(table, "ID ECE", ours)["KNN"] == "0.1500 ± 0.0707*"  # lower is better
    assert row(table, "SVHN AUROC", "the paper")["GOEN"] == "0.9372*"


def test_tables_2_and_3_take_what_is_theirs() -> None:
    ablate = study("ablate", results_of("no_svhn", 42, (0.9, 0.8, 1.0), accuracy=0.93))
    right = {"accuracy": 0.9, "ece": 0.05, "nll": 0.3, "brier": 0.1}
    seeds = study(
        "seeds",
        [
            *results_of("goen", 42, (0.9, 0.8, 1.0)),
            *Origin("classifier", "full", 42, "net", ("train",)).rows("test", "id", right),
            *results_of("goen", 123, (0.8, 0.8, 1.0)),
            *Origin("classifier", "full", 123, "net", ("train",)).rows("test", "id", right),
        ],
        center_loss=0.01,
        preset="auto",
    )
    _, second, third = paper_tables([ablate, seeds])
    assert row(second, "NoSVHN-NoiseOnly", "goen")["Avg OOD AUROC"] == "0.9000"
    assert row(second, "GOEN-Default", "goen")["ID Acc"] == "n/a"
    assert third.columns[2] == "goen, preset cpu, budget full, with CenterLoss: mean"
    found = [cell.formatted for cell in third.rows[-1].cells]
    assert found == ["0.9337", "0.0085", "0.8833", "0.0236", "0.9000", "0.8667"]
    assert third.rows[1].cells[2].value == 0.05


def test_presets_have_sections_of_their_own() -> None:
    both = [
        study("ablate", results_of("default", 42, (0.9, 0.9, 0.9)), preset=preset)
        for preset in ("short", "paper-bf16")
    ]
    single = study("ablate", results_of("default", 42, (0.8, 0.9, 0.9)), precision="float32")
    titles = [section for section, _ in paper_tables([*both, single])[1].sections()]
    assert titles[1:] == [
        "goen, preset short, budget full, seeds 42",
        "goen, preset paper-bf16, budget full, seeds 42",
        "goen, preset short, budget full, float32, seeds 42",
    ]


def test_options_of_seeds_have_columns_of_their_own() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"representation": "multi_scale", "head_epochs": 0},  # the same under other names
        {"center_loss": 0.01, "head_epochs": 10},  # as in the paper
        {"representation": "single_scale"},
    ]
    studies = [study("seeds", results_of("goen", 42, (0.9, 0.8, 1.0)), **o) for o in options]
    columns = [name for name in paper_tables(studies)[2].columns if name.endswith(": mean")]
    scale = "goen, preset short, budget full"
    assert columns[1:] == [
        f"{scale}, without CenterLoss: mean",
        f"{scale}, with CenterLoss, head of up to 10 epochs: mean",
        f"{scale}, without CenterLoss, single scale: mean",
    ]


def test_another_calibration_is_a_section_of_its_own() -> None:
    usual, other = (study("bench", results_of("goen", 42, (a, a, a))) for a in (0.9, 0.8))
    places = frozenset(("places", "noise"))
    other = replace(other, summary=replace(other.summary, calibration_ood=places))
    titles = [section for section, _ in paper_tables([usual, other])[0].sections()]
    assert titles[1:] == [
        "goen, preset short, budget full, seeds 42",
        "goen, preset short, budget full, calibrated with noise and places, seeds 42",
    ]
    for sets in (("svhn", "noise"), ()):
        summary = replace(usual.summary, calibration_ood=frozenset(sets))
        table = paper_tables([replace(usual, summary=summary)])[0]
        titles = [section for section, _ in table.sections()]
        assert titles[1:] == ["goen, preset short, budget full, seeds 42"]


def test_a_study_is_a_folder_or_a_kept_file(tmp_path: Path) -> None:
    results = results_of("default", 42, (0.9, 0.9, 0.9))
    summary = {"study": "ablate", "data": "cifar10", "config": {"preset": "short"}}
    write_results(tmp_path / "results.jsonl", results)
    (tmp_path / "run.json").write_text(json.dumps(summary))
    write_results(tmp_path / "kept.jsonl", results)
    (tmp_path / "kept.json").write_text(json.dumps(summary))
    assert (
        read_papers_study(tmp_path).results
        == read_papers_study(tmp_path / "kept.jsonl").results
        == results
    )
    (tmp_path / "kept.json").write_text(json.dumps({**summary, "data": "digits"}))
    with pytest.raises(UsageError, match=r"of CIFAR-10, and .* is of digits"):
        read_papers_study(tmp_path / "kept.jsonl")
    (tmp_path / "kept.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"not hold a finished study: .* Run its command again"):
        read_papers_study(tmp_path / "kept.jsonl")


@pytest.mark.parametrize(
    ("there", "asked", "missing"),
    [
        ((), "nothing.jsonl", "nothing.jsonl"),
        (("kept.jsonl",), "kept.jsonl", "kept.json"),
        ((), ".", "results.jsonl"),
        (("results.jsonl",), ".", "run.json"),
    ],
)
def test_a_missing_file_is_one_sentence(
    tmp_path: Path, there: tuple[str, ...], asked: str, missing: str
) -> None:
    for name in there:
        write_results(tmp_path / name, results_of("default", 42, (0.9, 0.9, 0.9)))
    with pytest.raises(ArtifactError, match=r"Expected .* goen bench, .* Check the name") as caught:
        read_papers_study(tmp_path / asked)
    assert str(caught.value).startswith(f"{tmp_path / missing} is not there. ")


def test_two_trainings_of_one_seed_are_not_mixed() -> None:
    first, same, other = (
        study("ablate", results_of("default", 42, (auroc, 0.9, 0.9))) for auroc in (0.9, 0.9, 0.8)
    )
    assert paper_tables([first, same])[1] == paper_tables([first])[1]
    with pytest.raises(UsageError, match=r"different numbers for default, SVHN AUROC, seed 42"):
        paper_tables([first, other])


def test_other_studies_are_refused() -> None:
    with pytest.raises(UsageError, match="got a study of goen geometry"):
        paper_tables([study("geometry", [])])


def test_kept_results_fill_the_tables() -> None:
    names = [
        *KEPT.glob("baselines-[0-9]*.jsonl"),
        *KEPT.glob("ablate-*.jsonl"),
        KEPT / "seeds.jsonl",
    ]
    tables = paper_tables(map(read_papers_study, sorted(names)))
    ours = [row(tables[0], "Avg OOD AUROC", "goen")[name] for name in ("KNN", "MCDropout")]
    assert ours == ["0.9206 ± 0.0048*", "0.8431"]
    for table in tables:
        assert markdown(table).count("\n|") > len(table.rows)
        assert latex(table).startswith("% needs")
