"""Trainings of several processes, as torchrun starts them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from goen.errors import UsageError
from goen.training.distributed import (
    Ranks,
    _normalised,
    current_ranks,
    join_ranks,
    launched_rank,
)

SCRIPT = Path(__file__).parent / "ranks.py"
processes = pytest.mark.xdist_group("processes")


def run(task: str, out: Path, size: int, **environment: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return subprocess.run(
        [sys.executable, *(launcher if size > 1 else []), str(SCRIPT), task, str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def result(task: str, out: Path, size: int) -> dict[str, torch.Tensor]:
    done = run(task, out, size)
    assert not done.returncode, done.stderr
    return load_file(out)


def test_alone_nothing_is_done() -> None:
    with join_ranks() as ranks:
        assert ranks == current_ranks() == Ranks(0, 1)
    rows = torch.ones(4, 2, requires_grad=True)
    assert ranks.gather_rows(rows, 4) is rows
    assert ranks.share(7) == slice(0, 7)
    assert ranks.broadcast("said") == "said"
    assert ranks.gather_bytes(b"x") == [b"x"]


def test_the_rank_is_that_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")  # of another launcher
    assert launched_rank() == 0
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert launched_rank() == 3


def test_shares_cover_a_batch() -> None:
    for count, size in ((64, 2), (10, 3), (5, 5)):
        rows = list(range(count))
        shares = [rows[Ranks(rank, size).share(count)] for rank in range(size)]
        assert [row for share in shares for row in share] == rows
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    with pytest.raises(UsageError, match="3 processes cannot share a batch of 2 images"):
        Ranks(0, 3).share(2)


@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_a_synchronised_norm_in_bfloat16_adds_up_in_float32(
    mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.training.distributed._sum", lambda values: values)
    torch.manual_seed(0)
    x, dy = (torch.randn(64, 3, 8, 8) + shift for shift in (mean, 0.0))
    x, dy = x.bfloat16(), dy.bfloat16()
    exact = torch.nn.BatchNorm2d(3).double()
    ours = torch.nn.BatchNorm2d(3)
    inputs = x.double().requires_grad_(), x.clone().requires_grad_()
    exact(inputs[0]).backward(dy.double())
    _normalised(ours, inputs[1]).backward(dy)
    for a, b in ((ours.weight, exact.weight), (ours.bias, exact.bias)):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.allclose(a.grad.double(), b.grad, rtol=1e-4, atol=1e-3)
    assert inputs[0].grad is not None
    assert inputs[1].grad is not None
    assert inputs[1].grad.dtype == torch.bfloat16
    error = (inputs[1].grad.double() - inputs[0].grad).norm() / inputs[0].grad.norm()
    assert error < 0.0025  # half a unit in the eighth bit, not more


@processes
def test_a_step_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    # In float64, where rounding cannot hide a mistake, and with shares of five and four images.
    one, two = (result("step", tmp_path / str(size), size) for size in (1, 2))
    assert one.keys() == two.keys()
    assert len([name for name in one if name.startswith("grad.")]) == 9
    for name, value in one.items():
        assert torch.allclose(two[name], value, rtol=1e-11, atol=1e-13), name


@processes
def test_a_training_of_two_processes_goes_on_after_one_was_killed(tmp_path: Path) -> None:
    two = result("train", tmp_path / "two", 2)
    out = tmp_path / "killed"
    killed = run("train", out, 2, KILLED="1")
    assert killed.returncode
    assert out.with_suffix(".checkpoint").exists()
    assert not out.exists()
    again = result("train", out, 2)
    assert all(torch.equal(again[name], value) for name, value in two.items())
    one = result("train", tmp_path / "one", 1)
    # Each epoch is three steps. Rounding differs, and soon it decides on which side of zero the
    # input of a ReLU lies: docs/scale.md.
    assert torch.allclose(one["losses"][0], two["losses"][0], rtol=2e-3)
    assert torch.allclose(one["losses"], two["losses"], rtol=0.1)
    assert torch.allclose(one["accuracies"], two["accuracies"], atol=0.1)
