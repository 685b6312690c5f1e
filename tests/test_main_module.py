"""``python -m goen`` is the command line, and the version is written once."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import goen

ROOT = Path(__file__).parent.parent


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "goen", *words], capture_output=True, text=True)


def test_it_runs_a_command_and_returns_its_code() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"goen {goen.__version__}\n", "")
    assert "usage: goen COMMAND" in run("--help").stdout
    wrong = run("scor")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("goen: Unknown command 'scor'. Did you mean 'score'?")


def test_importing_it_runs_nothing() -> None:
    script = "import goen.__main__; print('imported')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "imported\n")


def test_the_version_is_written_once() -> None:
    assert version("goen") == goen.__version__
    pattern = re.compile(re.escape(goen.__version__))
    files = [ROOT / "pyproject.toml", *(ROOT / "src").rglob("*.py"), ROOT / "Makefile"]
    found = [file for file in files if pattern.search(file.read_text())]
    assert found == [ROOT / "src" / "goen" / "__init__.py"]
