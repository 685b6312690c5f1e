"""The documentation site: pages made from the code, and what a release needs."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import goen
from goen.detectors import DETECTORS

ROOT = Path(__file__).parents[1]
pytest.importorskip("docutils", reason="needs goen[docs]")
sys.path.insert(0, str(ROOT / "docs"))
import site_pages  # type: ignore[import-not-found]  # noqa: E402


def test_every_detector_has_a_page_with_its_paper() -> None:
    pages = site_pages.method_pages()
    assert {f"methods/{name}.md" for name in DETECTORS} == pages.keys() - {"methods.md"}
    assert {*DETECTORS} <= site_pages.method_rows().keys()
    assert "| paper | Sun, Guo and Li 2021" in pages["methods/react.md"]
    assert "| needs | classifier" in pages["methods/react.md"]
    assert "| where it fails | few training images" in pages["methods/goen_m.md"]
    assert "| ONNX | no" in pages["methods/odin.md"]
    assert "| ONNX | yes" in pages["methods/knn.md"]
    assert "| rows of `goen bench` | `energy`" in pages["methods/energy.md"]


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join([*site_pages.api_pages().values(), *site_pages.method_pages().values()])
    described = set(re.findall(r"^\.\. auto\w+:: goen\.(?:\w+\.)?(\w+)", text, re.MULTILINE))
    modules = [import_module(f"goen.{name}") for name in sorted(site_pages.MODULES)]
    for module in (goen, *modules):
        for name, value in site_pages.public_names(module).items():
            listed = inspect.isroutine(value) or inspect.isclass(value)
            assert name in described or not listed, f"{module.__name__}.{name}"
    assert {"Gate", "fit_probe", "KNN", "ood_metrics", "DataMissing", "open_folder"} <= described
    assert not {"Iterable", "Sequence"} & described


def test_a_page_of_a_method_has_its_numbers_and_where_they_are_from() -> None:
    assert "on [unseen sets of CIFAR-10](/results.md#other-methods" in site_pages.measured("vim")
    assert re.search(r"; 0\.\d+ near and 0\.\d+ far on ", site_pages.measured("vim"))
    row = site_pages.table_of("results", "baselines")["goen-m, ordinary network"]
    assert site_pages.measured("goen_m").startswith(row["unseen"].strip("*"))
    assert site_pages.measured("masf") == "on [the board](/methods/board.md) alone"


def test_a_docstring_names_what_departs_from_the_paper_in_a_paragraph() -> None:
    lines = ["High.", "", "Paper: A 2020. Departs from the paper: nothing.", "See ``docs/a/b.md``."]
    site_pages.set_apart("app", "class", "goen.X", None, None, lines)
    assert lines[2:] == [
        *("**Paper:** A 2020.", "", "**Departs from the paper:** nothing.", "See :doc:`/a/b`.")
    ]


def test_layers_are_drawn_below_what_imports_them() -> None:
    imports = {"cli": {"gate", "io"}, "gate": {"io"}, "io": set(), "data": {"io"}}
    assert site_pages.layers_of(imports) == [["io"], ["data", "gate"], ["cli"]]
    layers = site_pages.layers_of(site_pages.imports_between_packages())
    assert layers[-1] == ["cli"]
    assert {"functional", "io"} <= {*layers[0]}


def test_links_outside_of_the_documentation_become_pages_or_text() -> None:
    kept = "[c](results.md#x) [d](https://x.org) [e](/score.md#y) [f](start/model.md)"
    source = [f"[a](../results/log.md) [b](../Dockerfile) {kept}"]
    site_pages.link_outside(None, "paper", source)
    assert source == [f"[a](/generated/log.md) b {kept}"]


def test_the_table_of_methods_leads_to_their_pages() -> None:
    source = ["| name |\n|---|\n| `knn` |\n"]
    site_pages.link_outside(None, "methods/README", source)
    assert source == ["| name |\n|---|\n| [knn](/generated/methods/knn.md) |\n"]


def test_the_page_of_all_methods_is_beside_the_site(tmp_path: Path) -> None:
    assert "goen-m, flip-averaged" in site_pages.write_board(tmp_path / "board").read_text()
    source = [(ROOT / "docs" / "methods" / "board.md").read_text()]
    site_pages.link_outside(None, "methods/board", source)
    assert 'one HTML page that <a href="../board.html">sorts and filters</a>' in source[0]


def test_the_index_leads_to_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "start").glob("*.md")]
    for page in pages:
        name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert name == "index" or re.search(rf"^{name}$", index, re.MULTILINE), name


def test_the_citation_has_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    version = goen.__version__.removesuffix(".dev0")
    assert f"\nversion: {version}\n" in citation
