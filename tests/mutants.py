"""Change one token of the source at random and see whether the tests notice: ``make mutants``.

Draws COUNT places in ``src/goen`` (an operator, a comparison, a small number, ``and``, ``not``,
``True``) with a SEED, changes each in a copy of the project, and runs the tests of the changed
file, then those of its package, of all files, and of the files that import it. A change that no
test notices is printed at the end: it is either a hole in the tests or a change that makes no
difference. Sizes and line widths of figures are left out: they are looked at. Run ``make test``
first: where a test fails anyway, every change seems to be noticed. That the tests can be collected
is checked here.
"""

import argparse
import ast
import io
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/goen")
FIGURES = SOURCE / "report/figures"
SECONDS = 900  # for the tests of one change; one that never ends is noticed
# Not "-p no:xdist": without the plugin its mark is unknown, and that fails before any test runs.
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0")
# Of all files: which values are frozen, and what the defaults are.
WHOLE = ("tests/test_structure.py", "tests/test_defaults.py")
OTHER = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "*",
    "%": "*",
    "+=": "-=",
    "-=": "+=",
    "*=": "/=",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "and": "or",
    "or": "and",
    "not": "",
    "True": "False",
    "False": "True",
}


@dataclass(frozen=True)
class Mutant:
    """A change of one token."""

    path: Path
    line: int
    column: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column + 1}: {self.old} -> {self.new or 'nothing'}"

    def applied(self, source: str) -> str:
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1]
        assert line.startswith(self.old, self.column)
        end = self.column + len(self.old)
        lines[self.line - 1] = line[: self.column] + self.new + line[end:]
        return "".join(lines)


def without_effect(tree: ast.Module) -> Iterator[ast.AST]:
    """What no test can see, or whose change is no program: annotations and imports.

    And ``strict=True`` of ``zip``: an assertion, which holds.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            yield from (word.value for word in node.keywords if ast.unparse(word) == "strict=True")
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield node.returns
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def stars(tree: ast.Module) -> set[tuple[int, int]]:
    """Where ``*`` stands for many arguments or values instead of a product."""
    found = {
        (node.lineno, node.col_offset) for node in ast.walk(tree) if isinstance(node, ast.Starred)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            for arg in (node.args.vararg, node.args.kwarg):
                if arg is not None:
                    found |= {(arg.lineno, arg.col_offset - n) for n in (1, 2)}
    return found


def mutants(path: Path, source: str) -> Iterator[Mutant]:
    """Every change of one token of a file; a few leave no program."""
    tree = ast.parse(source)
    not_products = stars(tree)
    skipped = [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in without_effect(tree)
    ]
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if any(start <= token.start < end for start, end in skipped):
            continue
        if token.start in not_products:
            continue
        if token.type == tokenize.NUMBER and FIGURES in path.parents:
            continue
        new = OTHER.get(token.string)
        if token.type == tokenize.NUMBER and token.string.isdecimal():
            new = str(int(token.string) + 1)
        elif token.type == tokenize.NUMBER and "." in token.string:
            new = f"{2 * float(token.string) or 1.0}"
        # In "not in" and "is not" the word is half of an operator.
        if token.string == "not" and (after.string == "in" or before.string == "is"):
            continue
        if new is None:
            continue
        yield Mutant(path, *token.start, token.string, new)


def is_program(mutant: Mutant) -> bool:
    """Not so for the bare ``*`` of keyword-only parameters, for one."""
    try:
        ast.parse(mutant.applied((ROOT / mutant.path).read_text("utf-8")))
    except SyntaxError:
        return False
    return True


def draw(count: int, seed: int) -> list[Mutant]:
    everything = [
        mutant
        for path in sorted((ROOT / SOURCE).rglob("*.py"))
        for mutant in mutants(path.relative_to(ROOT), path.read_text("utf-8"))
    ]
    random.Random(seed).shuffle(everything)
    return list(itertools.islice(filter(is_program, everything), count))


def suites_of(path: Path) -> list[list[str]]:
    """The tests of a file, of its package, of all files, and of the files that import it."""
    names = _names(path)
    folder = Path("tests", *names[:-1])
    package = folder if len(names) > 1 and (ROOT / folder).exists() else Path("tests", names[0])
    second = [str(package)] if (ROOT / package).is_dir() else []
    others = sorted({test for user in importers(path) for test in own_tests(user)})
    last = [test for test in others if not Path(test).is_relative_to(package)]
    return [[*own_tests(path), str(path)], second, list(WHOLE), last]


def own_tests(path: Path) -> list[str]:
    """The tests of a file that are there."""
    names = _names(path)
    folder = Path("tests", *names[:-1])
    own = [folder / f"test_{names[-1]}.py"]
    own += [folder.parent / f"test_{folder.name}.py"] if len(names) > 1 else []
    return [str(test) for test in own if (ROOT / test).exists()]


def importers(path: Path) -> list[Path]:
    """The files of the source that import this one by its name."""
    module = ".".join(("goen", *path.relative_to(SOURCE).with_suffix("").parts))
    found = (
        other.relative_to(ROOT)
        for other in sorted((ROOT / SOURCE).rglob("*.py"))
        if f"from {module} import" in other.read_text("utf-8")
    )
    return list(found)


def _names(path: Path) -> list[str]:
    place = path.relative_to(SOURCE)
    return [part.removeprefix("_") for part in place.with_suffix("").parts]


def run_tests(copy: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run these tests of a copy of the project."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    # A cached module of the same second and size would be taken for the changed one.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        [*PYTEST, *tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def require_collected(copy: Path) -> None:
    """Exit if the tests of the unchanged copy cannot even be collected."""
    done = run_tests(copy, ["--collect-only", "tests"])
    if done.returncode:
        sys.exit(f"The tests cannot be collected without a change:\n{done.stdout[-2000:]}")


def noticed(mutant: Mutant, copy: Path) -> bool:
    """Whether a test fails when the copy is changed. The copy is as before afterwards."""
    changed = copy / mutant.path
    source = changed.read_text("utf-8")
    changed.write_text(mutant.applied(source), "utf-8")
    try:
        suites = filter(None, suites_of(mutant.path))
        # 5: there were no tests
        return any(run_tests(copy, tests).returncode not in (0, 5) for tests in suites)
    except subprocess.TimeoutExpired:
        return True
    finally:
        changed.write_text(source, "utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each change, and those that no test noticed once more at the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--after", type=int, default=0, help="leave out the first so many")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    drawn = draw(options.count, options.seed)[options.after :]
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for worker in range(options.workers):
            kept_out = shutil.ignore_patterns(".venv", ".git", "runs", "__pycache__")
            copies.put(Path(shutil.copytree(ROOT, Path(folder, str(worker)), ignore=kept_out)))
        require_collected(copies.queue[0])

        def tried(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                return noticed(mutant, copy)
            finally:
                copies.put(copy)

        missed = []
        with ThreadPoolExecutor(options.workers) as pool:
            for mutant, seen in zip(drawn, pool.map(tried, drawn), strict=True):
                print(f"{'noticed' if seen else 'MISSED ':<8} {mutant}", flush=True)
                missed += [] if seen else [mutant]
    print(f"\n{len(drawn) - len(missed)} of {len(drawn)} noticed. Not noticed:", *missed, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
