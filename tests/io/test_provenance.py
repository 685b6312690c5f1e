import os
import platform
from pathlib import Path

import numpy as np
import pytest
import torch

import goen
from goen.io.provenance import hardware, versions


def test_versions_are_those_that_compute() -> None:
    found = versions()
    assert list(found) == ["python", "torch", "goen", "numpy", "scipy", "scikit-learn"]
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["numpy"] == np.__version__
    assert found["goen"] == goen.__version__


def test_hardware_names_the_machine_and_its_threads() -> None:
    found = hardware()
    assert list(found) == ["system", "processor", "cores", "threads", "accelerator"]
    assert found["system"] == f"{platform.system()} {platform.machine()}"
    assert found["cores"] == os.cpu_count()
    assert found["threads"] == torch.get_num_threads()


def test_the_processor_is_read_from_linux_or_asked_of_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        Path, "read_text", lambda *_, **__: "processor\t: 0\nmodel name\t: Fast: 9000\nmodel\t: 1"
    )
    assert hardware()["processor"] == "Fast: 9000"

    def no_such_file(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", no_such_file)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert hardware()["processor"] == "arm"
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert hardware()["processor"] == "unknown"
