"""What a processor computes in."""

import warnings

import torch


def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for products of bfloat16 (AVX-512 BF16, AMX)."""
    # torch 2.6 has no list of what a processor can do, but the question itself.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    known = capabilities.get("avx512_bf16", torch.cpu._is_avx512_bf16_supported())
    return bool(known or capabilities.get("amx_bf16", torch.cpu._is_amx_tile_supported()))


def warn_of_slow_bfloat16() -> None:
    """Say so where bfloat16 would be emulated."""
    if not multiplies_bfloat16():
        warnings.warn(
            "This processor has no instructions for bfloat16, so that training in it takes up to "
            "twenty times as long as in float32. Choose precision float32, or a preset that has "
            "it, such as fast.",
            stacklevel=3,
        )
