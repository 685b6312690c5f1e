import sys

import pytest

from goen.errors import ExtraMissing
from goen.libraries.importing import import_library, missing_library


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
