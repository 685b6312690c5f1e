"""Trainings of several processes, as torchrun starts them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from goen.data import ImageSet
from goen.errors import UsageError
from goen.training import train_backbone
from goen.training.batches import batches
from goen.training.distributed import (
    broadcast,
    join_processes,
    num_processes,
    parallel,
    sum_over_processes,
    synchronise_norms,
)
from tests.training.colours import CONFIG, NETWORK

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
    with join_processes() as rank:
        assert (rank, num_processes()) == (0, 1)
    assert broadcast("sent") == "sent"
    assert sum_over_processes(1.5, 2) == (1.5, 2)
    module = torch.nn.BatchNorm1d(2)
    assert parallel(module) is module


def test_norms_are_synchronised_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goen.training.distributed.num_processes", lambda: 2)
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    weight = network[0].weight
    synchronise_norms(network, torch.device("cpu"))
    assert type(network[0]) is torch.nn.BatchNorm1d
    synchronise_norms(network, torch.device("cuda"))
    assert type(network[0]) is torch.nn.SyncBatchNorm
    assert network[0].weight is weight


def test_shares_of_a_batch_are_of_one_size_and_have_no_image_twice(images: ImageSet) -> None:
    numbered = ImageSet("numbered", images.pixels, np.arange(64), tuple(map(str, range(64))))
    (whole, *_) = batches(numbered, CONFIG, 1)
    found = [
        [batch.labels.tolist() for batch in batches(numbered, CONFIG, 1, n, 3)] for n in range(3)
    ]
    assert {len(batch) for share in found for batch in share} == {16 // 3}
    assert len({label for share in found for batch in share for label in batch}) == 3 * 4 * 5
    first = [label for share in found for label in share[0]]
    assert set(first) < set(whole.labels.tolist())


def test_shares_are_augmented_by_random_numbers_of_their_own(images: ImageSet) -> None:
    same = ImageSet("same", np.repeat(images.pixels[:1], 64, 0), np.zeros(64), ("one",))
    shares = [next(batches(same, CONFIG, 0, rank, 2)).images for rank in range(2)]
    assert not torch.equal(*shares)


def test_a_process_needs_two_images_of_every_batch(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.training.checks.num_processes", lambda: 9)
    with pytest.raises(UsageError, match="9 processes cannot share batches of 16 images"):
        train_backbone(NETWORK, CONFIG, images, images)


@processes
def test_a_step_has_the_mean_of_the_gradients_of_all_shares(tmp_path: Path) -> None:
    found = result("step", tmp_path / "step", 2)
    assert found.pop("sum").tolist() == [3.0, 1.0]
    names = {name.partition(".")[2] for name in found}
    assert {"network.conv1.weight", "centres", "network.rotation.bias"} <= names
    for name in names:
        zero, one, both = (found[f"{which}.{name}"] for which in ("0", "1", "both"))
        assert not torch.equal(zero, one)
        assert torch.allclose(both, (zero + one) / 2, rtol=1e-4, atol=1e-6), name


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
    # Batch norms are over other images, and so is the augmentation.
    assert torch.allclose(one["losses"], two["losses"], rtol=0.3)
    assert torch.allclose(one["other losses"], two["other losses"], rtol=0.3)
    assert two["losses"][-1] < two["losses"][0]
