import warnings
from pathlib import Path

import pytest
import torch

from goen.errors import GoenWarning
from goen.training.precision import multiplies_bfloat16, warn_of_slow_bfloat16

# Linux lists the instructions of x86 as flags, those of ARM as features.
LISTED = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="asks Linux what the processor has")
def test_it_is_what_the_system_lists() -> None:
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    assert multiplies_bfloat16() == bool(flags & LISTED)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"neon": True, "bf16": True}, True),
        ({"avx512_bf16": False, "amx_bf16": False}, False),
        ({}, False),
    ],
)
def test_any_kind_of_instructions_will_do(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, bool], expected: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    assert multiplies_bfloat16() is expected
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_slow_bfloat16()
    assert [w.category for w in caught] == ([] if expected else [GoenWarning])


@pytest.mark.parametrize("which", ["_is_avx512_bf16_supported", "_is_amx_tile_supported", ""])
def test_an_earlier_torch_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda found=name == which: found)
    assert multiplies_bfloat16() is bool(which)
