"""The wheel and the sdist: built without network, complete, and usable away from the checkout."""

import email
import email.message
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import goen

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "goen"
NEEDED = {
    "goen/__init__.py",
    "goen/cli/main.py",
    "goen/gate/bundled/cifar10-ensemble/.goen",
    "goen/gate/bundled/cifar10-ensemble/CARD.md",
    "goen/gate/bundled/cifar10-ensemble/manifest.json",
    "goen/gate/bundled/cifar10-ensemble/published.json",
    "goen/gate/bundled/cifar10-ensemble/tensors.safetensors",
    "goen/gate/bundled/cifar10-w16/.goen",
    "goen/gate/bundled/cifar10-w16/CARD.md",
    "goen/gate/bundled/cifar10-w16/manifest.json",
    "goen/gate/bundled/cifar10-w16/published.json",
    "goen/gate/bundled/cifar10-w16/tensors.safetensors",
    "goen/py.typed",
    "goen/report/recorded/digits.json",
    *(p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").glob("goen/*/templates/*")),
}
# `goen demo` reads photographs of scikit-learn and Matplotlib: the wheel needs none of its own.
SUFFIXES = {
    *(".goen", ".py", ".typed", ".html", ".css", ".js", ".md", ".tex", ".json", ".safetensors"),
}
IN_THE_SDIST = {
    *("src", "tests", "docs", "recipes", "results", "benchmarks"),
    *(
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
    ),
    *("pyproject.toml", "constraints.txt", "Dockerfile", "PKG-INFO", ".gitignore"),
}
USE = """
import sys
import numpy as np
from PIL import Image
import goen
from goen.cli.main import main
from goen.report.texts import environment

print(goen.__file__)
assert goen.load("cifar10-w16").predict(np.zeros((1, 3, 32, 32), np.uint8)).score.shape == (1,)
assert environment().get_template("page.html").filename.startswith(sys.argv[1])
Image.new("RGB", (40, 30)).save("image.png")
sys.exit(main(["score", "image.png"]))
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    known = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=known)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (file,) = folder.glob("*.tar.gz")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (file,) = folder.glob("*.whl")
    return file


def metadata(wheel: Path) -> email.message.Message:
    (name,) = (name for name in names(wheel) if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_has_every_module_and_data_file(wheel: Path) -> None:
    modules = {f"goen/{file.relative_to(PACKAGE).as_posix()}" for file in PACKAGE.rglob("*.py")}
    assert modules | NEEDED <= names(wheel)


def test_the_wheel_has_nothing_else(wheel: Path) -> None:
    inside = names(wheel)
    info = f"goen-{goen.__version__}.dist-info"
    assert {name.split("/")[0] for name in inside} == {"goen", info}
    of_the_package = {Path(name) for name in inside if name.startswith("goen/")}
    assert {name.suffix or name.name for name in of_the_package} == SUFFIXES
    assert not [name for name in of_the_package if "tests" in name.parts]
    assert not [name for name in of_the_package if "runs" in name.parts]
    assert {name for name in of_the_package if name.suffix not in (".py", ".typed")} <= {
        Path(name) for name in NEEDED
    }


def test_the_metadata_has_the_version_of_the_package_and_the_pythons(wheel: Path) -> None:
    found = metadata(wheel)
    assert found["Version"] == goen.__version__
    assert found["Requires-Python"] == ">=3.11"
    named = {c.rsplit(" ", 1)[1] for c in found.get_all("Classifier", []) if ":: 3." in c}
    makefile = (ROOT / "Makefile").read_text()
    (checked,) = (line for line in makefile.splitlines() if line.startswith("PYTHONS := "))
    assert named == set(checked.removeprefix("PYTHONS := ").split())


def test_the_sdist_has_the_sources_and_no_data(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = [Path(name).relative_to(f"goen-{goen.__version__}") for name in archive.getnames()]
    assert {file.parts[0] for file in files} == IN_THE_SDIST
    assert {Path("src") / name for name in NEEDED} <= set(files)
    assert Path("tests/test_wheel.py") in files
    unwanted = {"__pycache__", ".venv", ".git"}
    assert not [file for file in files if unwanted & set(file.parts) or file.suffix == ".npz"]
    in_runs = {file for file in files if "runs" in file.parts and file.suffix != ".py"}
    assert in_runs <= {Path("src/goen/runs"), Path("tests/runs")}  # packages of that name, no data


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        # Python 3.11.4 and later can refuse what leaves the folder; later ones warn without it.
        filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **filtered)  # type: ignore[arg-type]
    source = tmp_path / f"goen-{goen.__version__}"
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    run(*build, cwd=source)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (tmp_path / "use.py").write_text(USE)
    printed = run(sys.executable, "use.py", str(site), cwd=tmp_path, PYTHONPATH=str(site))
    where, *rows = printed.splitlines()
    assert Path(where).is_relative_to(site)
    assert "image.png" in rows[0]
