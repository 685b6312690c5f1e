"""The software and the machine that a result was made with."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    """The versions a result depends on."""
    packages = {name: version(name) for name in ("goen", "numpy", "scipy", "scikit-learn")}
    # torch's own version names the build (CPU or CUDA); the package's metadata may not.
    return {"python": platform.python_version(), "torch": str(torch.__version__), **packages}


def hardware() -> dict[str, str | int]:
    """The machine that the numbers were made on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU only"
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "accelerator": device,
    }


def _processor() -> str:
    """The model of the processor: from a file on Linux, elsewhere from Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"
