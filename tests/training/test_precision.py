import warnings
from pathlib import Path

import pytest
import torch

from goen.errors import GoenWarning, UsageError
from goen.models import NetworkConfig
from goen.training import TrainingConfig, train_backbone
from goen.training.precision import (
    PrecisionChoice,
    check_bfloat16,
    choose_precision,
    multiplies_bfloat16,
)
from tests.tiny import tiny_protocol

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
# Linux lists the instructions of x86 as flags, those of ARM as features.
LISTED = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="asks Linux what the processor has")
def test_it_is_what_the_system_lists() -> None:
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    assert multiplies_bfloat16(CPU) == bool(flags & LISTED)


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
    assert multiplies_bfloat16(CPU) is expected
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_bfloat16(CPU)
    assert [w.category for w in caught] == ([] if expected else [GoenWarning])


@pytest.mark.parametrize("which", ["_is_avx512_bf16_supported", "_is_amx_tile_supported", ""])
def test_an_earlier_torch_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda found=name == which: found)
    assert multiplies_bfloat16(CPU) is bool(which)


def give_gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)


OLD = [("Tesla P100", (6, 0)), ("Tesla V100", (7, 0)), ("Tesla T4", (7, 5))]
NEW = [("A100", (8, 0)), ("RTX 3090", (8, 6)), ("H100", (9, 0))]


@pytest.mark.parametrize(("name", "capability"), OLD)
def test_a_gpu_without_bfloat16_trains_in_float32(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]
) -> None:
    give_gpu(monkeypatch, name, capability)
    assert not multiplies_bfloat16(GPU)
    for preset in ("float32", "bfloat16"):
        assert choose_precision("auto", preset, GPU) == "float32"
        assert choose_precision("float32", preset, GPU) == "float32"
    with pytest.warns(GoenWarning, match=rf"{name} \(compute.*{capability[0]}\.{capability[1]}\)"):
        assert choose_precision("bfloat16", "float32", GPU) == "float32"


@pytest.mark.parametrize(("name", "capability"), NEW)
def test_a_gpu_with_bfloat16_trains_in_it_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]
) -> None:
    give_gpu(monkeypatch, name, capability)
    check_bfloat16(GPU)
    for preset in ("float32", "bfloat16"):
        assert choose_precision("auto", preset, GPU) == "bfloat16"
        assert choose_precision("bfloat16", preset, GPU) == "bfloat16"
        assert choose_precision("float32", preset, GPU) == "float32"


def test_every_gpu_of_amd_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert multiplies_bfloat16(GPU)


@pytest.mark.parametrize("asked", ["auto", "float32", "bfloat16"])
def test_on_a_cpu_the_preset_or_the_user_chooses(asked: PrecisionChoice) -> None:
    for preset in ("float32", "bfloat16"):
        assert choose_precision(asked, preset, CPU) == (preset if asked == "auto" else asked)


def test_emulation_on_a_gpu_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give_gpu(monkeypatch, *OLD[-1])
    protocol, config = tiny_protocol(), TrainingConfig(precision="bfloat16")
    with pytest.raises(UsageError, match=r"8\.0 or later\); this is GPU Tesla T4 .* Choose prec"):
        train_backbone(NetworkConfig(), config, protocol.train, protocol.train, device=GPU)
