"""What a processor or a GPU computes in."""

from typing import Literal

import torch

from goen.errors import UsageError, warn
from goen.training.config import Precision

PrecisionChoice = Literal["auto", "float32", "bfloat16"]
# As torch names them: of x86 the first two, of ARM the others.
_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
# Of NVIDIA: A100 and later. Torch emulates bfloat16 on T4, P100 and V100.
_CAPABILITY = (8, 0)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether this device has instructions for products of bfloat16."""
    if device.type == "cuda":
        if torch.version.hip is not None:
            return True
        return torch.cuda.get_device_capability(device) >= _CAPABILITY
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is None:  # an earlier torch
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    found = capabilities()
    return any(found.get(name) for name in _INSTRUCTIONS)


def choose_precision(asked: PrecisionChoice, preset: Precision, device: torch.device) -> Precision:
    """The precision of a training on this device.

    Args:
        asked: by the user; ``auto`` is bfloat16 on a GPU, and the preset's elsewhere.
        preset: of the preset.
        device: where to train. A GPU that would emulate bfloat16 trains in float32.
    """
    if asked == "float32" or device.type != "cuda":
        return preset if asked == "auto" else asked
    if multiplies_bfloat16(device):
        return "bfloat16"
    if asked == "bfloat16":
        warn(f"{_gpu(device)} has no instructions for bfloat16: it trains in float32 instead.")
    return "float32"


def check_bfloat16(device: torch.device) -> None:
    """Warn where bfloat16 would be emulated on a processor.

    Raises:
        UsageError: it would be emulated on a GPU.
    """
    if multiplies_bfloat16(device):
        return
    if device.type == "cuda":
        raise UsageError(
            "Training in bfloat16 needs a GPU with instructions for it (compute capability 8.0 or "
            f"later); this is {_gpu(device)}. Choose precision float32."
        )
    warn(
        "This processor has no instructions for bfloat16, so that training in it takes up to "
        "twenty times as long as in float32. Choose precision float32, or a preset that has "
        "it, such as fast."
    )


def _gpu(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    return f"GPU {name} (compute capability {major}.{minor})"
