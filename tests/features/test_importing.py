import json
import subprocess
import sys
from pathlib import Path

import pytest

from goen.errors import ExtraMissing
from goen.features.importing import import_library, missing_library


def test_a_library_that_is_not_here_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ExtraMissing, match=r"timm is not here .*pip install 'goen\[timm\]'"):
        import_library("timm", "timm")
    assert import_library("json", "none").dumps([1]) == "[1]"


def test_a_torchvision_of_another_build_is_named() -> None:
    """As the import of transformers fails: what is wrong is three exceptions below."""
    try:
        try:
            raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError as below:
            raise ModuleNotFoundError("Could not import module 'ViTModel'") from below
    except ModuleNotFoundError as error:
        found = missing_library("transformers", "hf", error)
    text = str(found)
    assert "because torchvision cannot: operator torchvision::nms does not exist. " in text
    assert "must be of one build, both for the CPU or both for CUDA" in text
    assert "pip uninstall torchvision" in text


def test_another_broken_library_gives_its_reason() -> None:
    found = missing_library("timm", "timm", OSError("libgomp.so: cannot open\nmore"))
    assert str(found) == "timm is installed but cannot be imported: libgomp.so: cannot open."


def test_a_missing_torchvision_is_missing() -> None:
    error = ModuleNotFoundError("No module named 'torchvision'")
    assert "pip install 'goen[timm]'" in str(missing_library("timm", "timm", error))


BROKEN = "raise RuntimeError('operator torchvision::nms does not exist')"
SCRIPT = """
import sys, torch, goen
sys.path.insert(0, sys.argv[1])
torch.save({}, sys.argv[1] + "/w.pt")
for name, weights in (("timm:resnet18", sys.argv[1] + "/w.pt"), ("hf:" + sys.argv[1], None)):
    try:
        goen.load_model(name, weights)
    except goen.errors.ExtraMissing as error:
        print(error)
"""


def test_timm_and_transformers_beside_a_torchvision_of_another_build(tmp_path: Path) -> None:
    """What each of them makes of it; in a process of its own, which has imported neither."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(BROKEN)
    config = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    for library, line in zip(("timm", "transformers"), lines, strict=True):
        assert line.startswith(f"{library} cannot be imported, because torchvision cannot: ")
        assert "operator torchvision::nms does not exist. torchvision and torch must be of" in line
