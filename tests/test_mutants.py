"""The script that attacks the tests (``make mutants``)."""

from pathlib import Path

import pytest

from tests.mutants import (
    FIGURES,
    ROOT,
    SOURCE,
    WHOLE,
    Mutant,
    draw,
    is_program,
    mutants,
    require_collected,
    run_tests,
    suites_of,
)

EXAMPLE = '''"""A docstring with 1 + 1."""

from x import *


def f(a: dict[str, 3], *rest: int, b: float = 0.5) -> list[2]:
    if a is not None and b not in rest:
        return [*rest, a - b * 10]
    return not a
'''


def changes(path: Path, source: str) -> list[tuple[int, str, str]]:
    return [(mutant.line, mutant.old, mutant.new) for mutant in mutants(path, source)]


def test_what_is_changed() -> None:
    assert changes(SOURCE / "a.py", EXAMPLE) == [
        (6, "0.5", "1.0"),
        (7, "and", "or"),
        (8, "-", "+"),
        (8, "*", "/"),
        (8, "10", "11"),
        (9, "not", ""),
    ]


def test_the_assertion_of_zip_is_left_out() -> None:
    assert changes(SOURCE / "a.py", "zip(a, b, strict=True)") == []
    assert changes(SOURCE / "a.py", "zip(a, b, strict=False)") == [(1, "False", "True")]
    assert changes(SOURCE / "a.py", "zap(a, b, strict=True)") == [(1, "True", "False")]


def test_numbers_in_figures_are_left_out() -> None:
    assert (6, "0.5", "1.0") not in changes(FIGURES / "a.py", EXAMPLE)
    assert (8, "-", "+") in changes(FIGURES / "a.py", EXAMPLE)


def test_one_token_is_changed() -> None:
    assert Mutant(SOURCE, 2, 3, "==", "!=").applied("a == b\nb  == a\n") == "a == b\nb  != a\n"


def test_the_same_seed_draws_the_same() -> None:
    drawn = draw(8, seed=3)
    assert len(set(drawn)) == 8
    assert all(is_program(mutant) for mutant in drawn)
    assert draw(5, seed=3) == drawn[:5]
    assert draw(5, seed=4) != drawn[:5]


def test_the_suites_of_a_file_its_package_all_and_its_importers() -> None:
    assert suites_of(SOURCE / "metrics/_ood.py") == [
        ["tests/metrics/test_ood.py", "src/goen/metrics/_ood.py"],
        ["tests/metrics"],
        list(WHOLE),
        [],
    ]
    assert suites_of(SOURCE / "features/extractor.py") == [
        ["tests/features/test_extractor.py", "src/goen/features/extractor.py"],
        ["tests/features"],
        list(WHOLE),
        suites_of(SOURCE / "features/extractor.py")[3],
    ]
    assert "tests/gate/fitting/test_fit.py" in suites_of(SOURCE / "features/extractor.py")[3]
    assert suites_of(SOURCE / "monitor/journal.py")[1:] == [
        ["tests/monitor"],
        list(WHOLE),
        ["tests/report/pages/test_watch.py"],
    ]


def test_every_test_can_be_collected_without_a_change(tmp_path: Path) -> None:
    # A file with xdist's mark was once an error in itself, and every change seemed to be noticed.
    marked = "tests/report/test_comparison.py"
    assert "xdist_group" in (ROOT / marked).read_text("utf-8")
    assert run_tests(ROOT, ["--collect-only", marked]).returncode == 0
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_broken.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(SystemExit, match="nothing_of_this_name"):
        require_collected(tmp_path)
