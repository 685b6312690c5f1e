"""The documentation site: pages made from the code, and what a release needs."""

import re
import sys
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
    text = "\n".join(site_pages.api_pages().values())
    for name in goen.__all__:
        if name not in site_pages.MODULES and not name.startswith("_"):
            assert f":: goen.{name}" in text


def test_layers_are_drawn_below_what_imports_them() -> None:
    imports = {"cli": {"gate", "io"}, "gate": {"io"}, "io": set(), "data": {"io"}}
    assert site_pages.layers_of(imports) == [["io"], ["data", "gate"], ["cli"]]
    layers = site_pages.layers_of(site_pages.imports_between_packages())
    assert layers[-1] == ["cli"]
    assert {"functional", "io"} <= {*layers[0]}


def test_links_outside_of_the_documentation_become_pages_or_text() -> None:
    source = ["[a](../results/log.md) [b](../Dockerfile) [c](results.md#x) [d](https://x.org)"]
    site_pages.link_outside(None, "paper", source)
    assert source == ["[a](/generated/log.md) b [c](results.md#x) [d](https://x.org)"]


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
    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "index.md":
            assert re.search(rf"^{page.stem}$", index, re.MULTILINE), page.name


def test_the_citation_has_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    version = goen.__version__.removesuffix(".dev0")
    assert f"\nversion: {version}\n" in citation
