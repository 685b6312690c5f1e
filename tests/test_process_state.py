"""No call leaves a trace in the process: not when it succeeds, not when it raises."""

import decimal
import gc
import locale
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch import nn

import goen
from goen.data import Protocol
from goen.data.images import formats
from goen.errors import GoenError
from goen.gate import Gate
from goen.report import write_report
from goen.scoring.pipeline import ScoreSettings, score
from goen.scoring.rows import RowCounts
from goen.scoring.sinks import RowSink
from goen.scoring.sources import Sources
from goen.studies import PRESETS, BenchConfig, RunConfig, bench, run
from tests.image_sources import scored_rows
from tests.own_model import LAYERS, DigitNet, digits, preprocess, trained
from tests.tiny import FAST, tiny_protocol


def snapshot() -> dict[str, object]:
    """What belongs to the process and not to one call, by name."""
    mask = os.umask(0)
    os.umask(mask)
    loggers = {"root": logging.root, **logging.root.manager.loggerDict}
    return {
        "warnings.filters": list(warnings.filters),
        "warnings.showwarning": warnings.showwarning,
        "random": hash(random.getstate()),
        "numpy.random": hash(repr(np.random.get_state(legacy=False))),  # noqa: NPY002
        "torch.random": hash(torch.get_rng_state().numpy().tobytes()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
            torch.backends.mkldnn.enabled,
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "precision": (torch.get_float32_matmul_precision(), torch.backends.mkldnn.allow_tf32),
        "default dtype and device": (torch.get_default_dtype(), torch.get_default_device()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()),
        "torch printing": str(vars(torch._tensor_str.PRINT_OPTS)),
        "numpy errors": (np.geterr(), np.get_printoptions()),
        "decimal": repr(decimal.getcontext()),
        "umask": mask,
        "folder": Path.cwd(),
        "environment": dict(os.environ),
        "sys.path": list(sys.path),
        "streams": (sys.stdin, sys.stdout, sys.stderr, sys.excepthook, sys.displayhook),
        "recursion": sys.getrecursionlimit(),
        "locale": locale.setlocale(locale.LC_ALL),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "collection": (gc.isenabled(), gc.get_threshold()),
        "logging.disable": logging.root.manager.disable,
        **{
            f"logger {name}": (
                log.level,
                list(log.handlers),
                list(log.filters),
                log.propagate,
                log.disabled,
            )
            for name, log in loggers.items()
            if isinstance(log, logging.Logger)
        },
        "Pillow": (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, ImageFile.MAXBLOCK),
    }


@contextmanager
def unchanged(*models: nn.Module) -> Iterator[None]:
    """Fails if the block leaves the process or one of the models as it was not."""
    before = snapshot()
    parts = [part for model in models for part in model.modules()]
    modes = [part.training for part in parts]
    flags = [p.requires_grad for model in models for p in model.parameters()]
    yield
    after = snapshot()
    # Only what was there before: modules that are imported meanwhile make loggers of their own.
    changed = {
        name: (value, after[name]) for name, value in before.items() if value != after.get(name)
    }
    assert not changed
    assert [part.training for part in parts] == modes
    assert [p.requires_grad for model in models for p in model.parameters()] == flags
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in parts)


class Failing(DigitNet):
    """Fails at its third batch."""

    calls = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.calls > 2:
            raise RuntimeError("the model's own error")
        return super().forward(x)


def fit(model: nn.Module, **settings: object) -> Gate:
    return Gate.fit(
        model,
        digits().train,
        digits().validation,
        layers=LAYERS,
        preprocess=preprocess,
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def gate() -> Gate:
    return fit(trained(), false_alarm_rate=0.1)


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    return tiny_protocol()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Pictures that are whole, odd, cut short and missing."""
    picture = Image.fromarray(digits().test.read([0])[0].transpose(1, 2, 0))
    picture.save(tmp_path / "whole.png")
    odd = picture.convert("P")
    odd.info["transparency"] = b"\x00" * 3
    odd.save(tmp_path / "odd.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:200])
    names = ["whole.png", "odd.png", "cut.png", "missing.png"]
    return [tmp_path / name for name in names] * 40


def test_a_change_is_seen() -> None:
    changes: list[Callable[[], object]] = [
        lambda: torch.rand(1),
        lambda: np.random.rand(),  # noqa: NPY002
        random.random,
        lambda: warnings.simplefilter("ignore"),
        lambda: os.environ.update(GOEN_TEST="1"),
        lambda: logging.getLogger("goen").setLevel(7),
        lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    ]
    level, threads = logging.getLogger("goen").level, torch.get_num_threads()
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            for change in changes:
                with pytest.raises(AssertionError), unchanged():
                    change()
        model = DigitNet().eval()
        with pytest.raises(AssertionError), unchanged(model):
            model.late.train()
    finally:
        os.environ.pop("GOEN_TEST")
        logging.getLogger("goen").setLevel(level)
        torch.set_num_threads(threads)


@pytest.mark.parametrize("training", [True, False])
def test_fit_predict_update_and_layers(training: bool) -> None:
    model = trained().train(training)
    model.early.eval()
    with unchanged(model):
        gate = fit(model, ood={"noise": digits().calibration_ood["noise"]})
        gate.predict(digits().test)
        gate.predict(digits().test.read(range(3)))
        gate.update(ood={"negatives": 255 - digits().test.read()})
        gate.with_false_alarm_rate(0.1).predict(digits().test.read([0])).flag_with_fdr(0.5)
        goen.list_layers(model, (3, 32, 32))
        goen.extract(gate.network, digits().test)
    for images in (np.zeros((2, 3, 8, 8), np.uint8), np.full((2, 3, 32, 32), np.nan), []):
        with unchanged(model), pytest.raises(GoenError):
            gate.predict(images)
    with unchanged(model), pytest.raises(GoenError):
        gate.update(held_out=digits().train)


def test_a_fit_that_fails() -> None:
    failing = Failing().train()
    with unchanged(failing), pytest.raises(RuntimeError, match="the model's own error"):
        fit(failing)


def test_score(gate: Gate, files: list[Path]) -> None:
    with unchanged(gate.network):
        rows = scored_rows(gate, *files)
    assert RowCounts.of(rows).unreadable == 80

    def refuse(row: object) -> None:
        raise OSError("no space")

    with unchanged(gate.network):
        with pytest.raises(OSError, match="no space"):
            score(gate, Sources([*map(str, files)], gate), RowSink(refuse), ScoreSettings())
        while formats._quiet_users:  # files that threads were reading already are read to their end
            time.sleep(0.01)


def test_save_and_load(gate: Gate, tmp_path: Path) -> None:
    with unchanged(gate.network):
        gate.save(tmp_path / "gate")
    model = DigitNet()
    with unchanged():
        goen.load(tmp_path / "gate", model=model, preprocess=preprocess)
        goen.load("cifar10-w16")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with unchanged(gate.network), pytest.raises(GoenError):
        gate.save(tmp_path / "other")
    for arguments in ((tmp_path / "gate",), (tmp_path / "gate", nn.Linear(2, 2)), ("nowhere",)):
        with unchanged(), pytest.raises(GoenError):
            goen.load(*arguments)


def test_export(gate: Gate, tmp_path: Path) -> None:
    # Torch sets up its compiler (a logger, the folder of its cache) when it first traces a model.
    torch.export.export(nn.Linear(2, 2), (torch.rand(1, 2),), strict=False)
    images = digits().test.read(range(40))
    with unchanged(gate.network):
        gate.export(tmp_path / "gate.onnx", images)
    with unchanged(gate.network), pytest.raises(GoenError):
        gate.export(tmp_path / "other.onnx", images, tolerance=0.0)


def test_run_and_bench(protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]
    with unchanged():
        run(RunConfig(preset="fast"), protocol, tmp_path / "run")
        write_report(tmp_path / "run")
        bench(BenchConfig(preset="fast", methods=("knn", "goen")), protocol, tmp_path / "bench")
        write_report(tmp_path / "bench")
    with unchanged(), pytest.raises(GoenError):
        run(RunConfig(preset="fast"), protocol, tmp_path / "bench" / "run.json" / "below")
    with unchanged(), pytest.raises(GoenError):
        bench(BenchConfig(methods=("knm",)), protocol, tmp_path / "other")


def test_the_first_use_of_goen_in_a_process() -> None:
    script = (
        "import random, numpy, torch\n"
        "random.seed(0), numpy.random.seed(0), torch.manual_seed(0)\n"
        "import goen\n"
        "goen.load('cifar10-w16').predict(goen.data.load_set('digits').take(range(3)))\n"
        "print(random.random(), numpy.random.rand(), torch.rand(()).item())\n"
    )
    with_goen, without = (
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        for text in (script, re.sub(".*goen.*\n", "", script))
    )
    assert with_goen.stdout == without.stdout
