import platform
import warnings
from pathlib import Path

import pytest
import torch

from goen.training.precision import multiplies_bfloat16, warn_of_slow_bfloat16


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="asks Linux what the processor has")
def test_it_is_what_the_system_says() -> None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    if platform.machine() == "x86_64":
        assert multiplies_bfloat16() == ("avx512_bf16" in flags or "amx_bf16" in flags)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx512_bf16": False, "amx_bf16": False}, False),
    ],
)
def test_either_kind_of_instructions_will_do(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, bool], expected: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    assert multiplies_bfloat16() is expected
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_slow_bfloat16()
    assert [str(w.message)[:32] for w in caught] == (
        [] if expected else ["This processor has no instructio"]
    )
