"""Every Python example in the README and the docs runs, and every command has its options."""

import importlib.util
import io
import re
import runpy
import tempfile
import warnings
from contextlib import redirect_stdout
from functools import cache
from importlib import resources
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

from goen.cli.main import COMMANDS, main
from goen.studies import METHODS
from tests.gate.test_gate import make_gate
from tests.torchvision_import import import_torchvision

ROOT = Path(__file__).parent.parent
# Not those that `make docs` writes.
WRITTEN = {ROOT / "docs" / "generated", ROOT / "docs" / "gallery"}
DOCS = sorted(p for p in (ROOT / "docs").rglob("*.md") if not WRITTEN & {*p.parents})
PAGES = [ROOT / "README.md", *DOCS]
GALLERY = sorted((ROOT / "docs" / "examples").glob("*.py"))
# What a comment behind an expression says that it gives: # "...".
QUOTED = re.compile(r'^(\S.*?)  # [^"\n]*"([^"\n]+)"$', re.MULTILINE)
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_EXAMPLES = [page for page in PAGES if EXAMPLE.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_gate().save(tmp_path / "runs" / "digits")
    photograph = resources.files("sklearn.datasets.images") / "china.jpg"
    (tmp_path / "photo.jpg").write_bytes(photograph.read_bytes())
    if "import transformers" in page.read_text():
        import_torchvision()
    namespace: dict[str, object] = {}
    for block in filter(libraries_are_here, EXAMPLE.findall(page.read_text())):
        printed = io.StringIO()
        with redirect_stdout(printed), warnings.catch_warnings():
            if optional_libraries(block):
                warnings.simplefilter("ignore")  # of their own code
            exec(compile(block, str(page), "exec"), namespace)
        for line, quoted in QUOTED.findall(block):
            found = printed.getvalue()
            if not line.startswith("print("):
                found = str(eval(line, namespace))
            for part in quoted.split("..."):
                assert says(found, part.strip()), f"{line} gives {found}, not {quoted}"
    assert namespace


@pytest.mark.parametrize("example", GALLERY, ids=lambda path: path.stem)
def test_examples_of_the_gallery_run_and_draw(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pyplot.rc_context({"backend": "agg"}), redirect_stdout(io.StringIO()):
        runpy.run_path(str(example))
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        pyplot.close("all")
    assert figures
    assert all(axes.has_data() for figure in figures for axes in figure.axes)


# Of examples that run where these libraries are installed; transformers trains with accelerate.
OPTIONAL = {"lightning": ("lightning",), "transformers": ("transformers", "accelerate")}


def optional_libraries(block: str) -> list[str]:
    """The libraries that an example needs beside goen's own dependencies."""
    imported = re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)
    needed = [part for name in imported for part in OPTIONAL.get(name, ())]
    return [part for part in needed if part != "accelerate" or "Trainer" in block]


def libraries_are_here(block: str) -> bool:
    """Whether an example imports no library of OPTIONAL that is not installed."""
    return all(importlib.util.find_spec(part) for part in optional_libraries(block))


def test_an_example_of_a_library_that_is_not_here_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "accelerate")
    assert libraries_are_here("import transformers\n")
    assert not libraries_are_here("import transformers\ntransformers.Trainer()\n")
    assert libraries_are_here("from lightning import Trainer\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not libraries_are_here("import lightning\n")
    assert libraries_are_here("import goen\n")


def says(text: str, part: str) -> bool:
    """Whether these words and numbers, to a tenth, are somewhere in the text."""
    number = r"(\d+(?:\.\d+)?)"
    pattern = number.join(map(re.escape, re.split(r"\d+(?:\.\d+)?", part)))
    expected = [float(found) for found in re.findall(number, part)]
    return any(
        np.allclose([float(one) for one in match.groups()], expected, rtol=0.1, atol=0)
        for match in re.finditer(pattern, text)
    )


def commands(path: Path) -> list[list[str]]:
    """Every ``goen COMMAND ...`` that a page or a script shows, as words."""
    text = re.sub(r"\s*\\\n\s*", " ", path.read_text())
    lines = re.findall(r"(?:^|`|\$ )[ \t]*goen ([a-z][^`\n]*)", text, re.MULTILINE)
    found = [line.partition("  ")[0].partition(" # ")[0].split() for line in lines]
    return [words for words in found if words[0] in COMMANDS]


SCRIPTS = sorted((ROOT / "recipes").glob("*.sh"))
CURRENT = PAGES


@cache
def help_of(*command: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        main([*command, "--help"])
    return printed.getvalue()


@pytest.mark.parametrize(
    "page",
    [*CURRENT, ROOT / "recipes" / "README.md", *SCRIPTS],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_commands_have_the_options_that_the_pages_show(page: Path) -> None:
    for words in commands(page):
        command = words[:2] if words[0] == "data" else words[:1]
        known = set(re.findall(r"--[a-z][a-z0-9-]*", help_of(*command)))
        shown = {word for word in words if word.startswith("--")}
        assert shown <= known, f"{page.name}: goen {' '.join(words)}"
        if "--methods" in words:
            names = takewhile(lambda w: w[0] not in '-"$', words[words.index("--methods") + 1 :])
            assert {n for n in names if not n.startswith("pytorch_ood.")} <= set(METHODS)


def test_commands_are_found_in_pages_and_scripts() -> None:
    assert len(commands(ROOT / "README.md")) > 10
    assert all(commands(script) for script in SCRIPTS)


def test_the_readme_begins_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < text.index("##")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
