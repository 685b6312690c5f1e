"""What a processor computes in."""

import torch

from goen.errors import warn

# As torch names them: of x86 the first two, of ARM the others.
_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16."""
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is None:  # an earlier torch
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    found = capabilities()
    return any(found.get(name) for name in _INSTRUCTIONS)


def warn_of_slow_bfloat16() -> None:
    """Warn where bfloat16 would be emulated."""
    if not multiplies_bfloat16():
        warn(
            "This processor has no instructions for bfloat16, so that training in it takes up to "
            "twenty times as long as in float32. Choose precision float32, or a preset that has "
            "it, such as fast."
        )
