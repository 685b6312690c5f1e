"""Gates fitted over partitions of the training set are those of the whole set, byte for byte."""

import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from goen.errors import LeakError, UsageError
from goen.gate import (
    Gate,
    PartialFit,
    load,
    merge,
    partial_fit,
    partial_fit_outputs,
    partition_rows,
)
from goen.gate.fit_parts import fit_share
from goen.models.tapping.tapped import Tapped
from goen.training.distributed import Ranks

from ..own_model import LAYERS, digits, ood, preprocess, trained
from .test_fit_outputs import HELD_OUT, LABELS, X, given

ROOT = Path(__file__).parent.parent.parent
BATCH = 32
NAMES = list("abcde")


def files(gate: Gate, folder: Path) -> dict[str, bytes]:
    gate.save(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def part(rows: range, **changes: object) -> PartialFit:
    settings = {"layers": LAYERS, "preprocess": preprocess, "batch_size": BATCH, **changes}
    return partial_fit(trained(), digits().train.take(rows), first_row=rows.start, **settings)


def parts(partitions: int) -> list[PartialFit]:
    made = [part(rows) for rows in partition_rows(len(digits().train), partitions, BATCH)]
    random.Random(partitions).shuffle(made)
    return made


def fit(train: object, **changes: object) -> Gate:
    settings = {"preprocess": preprocess, "batch_size": BATCH, "ood": ood(), **changes}
    return Gate.fit(trained(), train, digits().validation, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files(fit(digits().train, layers=LAYERS), tmp_path_factory.mktemp("whole") / "gate")


@pytest.mark.parametrize("partitions", [1, 2, 7, 1000])
def test_the_gate_is_the_same_bytes(
    partitions: int, whole: dict[str, bytes], tmp_path: Path
) -> None:
    assert files(fit(merge(parts(partitions))), tmp_path / "gate") == whole


@pytest.mark.parametrize("kind", ["class means", "no classes", "logits"])
def test_gates_of_features(kind: str, tmp_path: Path) -> None:
    labels = None if kind == "no classes" else LABELS
    names = NAMES if kind == "class means" else None
    held_out = given(kind, HELD_OUT)
    gate = Gate.fit_outputs(
        given(kind, X),
        labels,
        held_out,
        classes=names,
        batch_size=100,  # type: ignore[arg-type]
    )
    expected = files(gate, tmp_path / "whole")
    for count in (2, 7):
        made = [
            partial_fit_outputs(
                given(kind, X[rows.start : rows.stop]),  # type: ignore[arg-type]
                None if labels is None else labels[rows.start : rows.stop],
                first_row=rows.start,
                classes=names,
                batch_size=100,
            )
            for rows in partition_rows(len(X), count, 100)
        ]
        again = Gate.fit_outputs(
            merge(made[::-1]),
            None,
            held_out,
            classes=names,
            batch_size=100,  # type: ignore[arg-type]
        )
        assert files(again, tmp_path / str(count)) == expected


def test_an_update_of_a_gate_of_parts_equals_a_fit_of_all(tmp_path: Path) -> None:
    train = digits().train
    again = {"held_out": digits().validation, "batch_size": BATCH}
    gate = fit(merge([part(range(320)), part(range(320, 640))]), ood=None)
    updated, _ = gate.update(train=train.take(range(640, len(train))), **again)
    expected = fit(train, ood=None).detector.state()
    found = updated.detector.state()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_partitions_are_whole_batches() -> None:
    assert partition_rows(10, 3, 4) == [range(4), range(4, 8), range(8, 10)]
    assert partition_rows(10, 7, 4) == partition_rows(10, 3, 4)
    for count, partitions, size in ((664, 7, 32), (1, 5, 128), (1281167, 64, 128)):
        found = partition_rows(count, partitions, size)
        assert [row for rows in found[:3] for row in rows] == list(range(found[:3][-1].stop))
        assert found[-1].stop == count
        assert all(rows.start % size == 0 and len(rows) for rows in found)
        lengths = [len(rows) for rows in found[:-1]]
        assert not lengths or max(lengths) - min(lengths) <= size
    with pytest.raises(UsageError, match="1 or more, got 0 and 2"):
        partition_rows(0, 2)


def test_a_held_out_image_in_a_part_is_a_leak() -> None:
    with pytest.raises(LeakError, match="held_out shares 300 of its 300 images with train"):
        Gate.fit(trained(), merge(parts(2)), digits().train.take(range(300)), preprocess=preprocess)


def test_labels_without_logits_need_the_names_of_all_classes() -> None:
    with pytest.raises(UsageError, match="names of all classes"):
        partial_fit_outputs(X[:10], LABELS[:10])
    read = merge([partial_fit_outputs(X, None)])
    with pytest.raises(UsageError, match="give no others"):
        Gate.fit_outputs(read, LABELS, HELD_OUT)
    with pytest.raises(UsageError, match="read from images"):
        Gate.fit_outputs(part(range(664)), None, HELD_OUT)


class Threads(Ranks):
    """Ranks that are threads of this process."""

    def gather_bytes(self, own: bytes) -> list[bytes]:
        found[self.rank] = own
        barrier.wait(60)
        return [found[rank] for rank in range(self.size)]


found: dict[int, bytes] = {}
barrier = threading.Barrier(3)


def test_shares_of_ranks_give_the_same_bytes(whole: dict[str, bytes], tmp_path: Path) -> None:
    def share(rank: int) -> PartialFit | None:
        tapped = Tapped(trained(), LAYERS, preprocess=preprocess)
        train = digits().train
        return fit_share(tapped, train, Threads(rank, 3), batch_size=BATCH)

    with ThreadPoolExecutor(3) as pool:
        read, *others = pool.map(share, range(3))
    assert others == [None, None]
    assert files(fit(read), tmp_path / "gate") == whole
    assert fit_share(trained(), digits().train, Ranks()) is None


@pytest.fixture
def ray() -> Iterator[object]:
    ray = pytest.importorskip(
        "ray", reason="Ray is not installed: pip install 'goen[ray]' to fit with its tasks"
    )
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        configure_logging=False,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


@pytest.mark.xdist_group("processes")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_tasks_give_the_same_bytes(ray: object, tmp_path: Path) -> None:
    example = re.search(
        r"^```py\n(# with Ray.*?)^```$",
        (ROOT / "docs" / "scale.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert example is not None
    names = {
        "ray": ray,
        "model": trained(),
        "train": digits().train,
        "held_out": digits().validation,
    }
    exec(compile(example[1], "docs/scale.md", "exec"), names)
    gate = names["gate"]
    assert isinstance(gate, Gate)
    alone = Gate.fit(trained(), digits().train, digits().validation)
    assert files(gate, tmp_path / "ray") == files(alone, tmp_path / "alone")
    assert load(tmp_path / "ray", trained()).threshold == alone.threshold
