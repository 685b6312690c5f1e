"""The probe of the processor: what it finds, and that a test without its mark cannot kill a run."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from tests.processor import ABILITIES, MISSING, SIMULATE, guarded, probe


@pytest.mark.parametrize(
    "without", [[], ["bfloat16 attention"], ["bfloat16 convolution", "float16 attention"]]
)
def test_exactly_what_dies_is_missing(without: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = os.environ.get(SIMULATE, "").split(",")
    really = set(json.loads(os.environ.get(MISSING, "{}"))) - {*simulated}
    monkeypatch.setenv(SIMULATE, ",".join(without))
    found = probe()
    assert list(found) == [name for name in ABILITIES if name in without or name in really]
    assert all(found[name] == "SIGILL" for name in without)


@pytest.mark.parametrize(
    ("missing", "function"),
    [
        ("bfloat16 convolution", lambda x: nn.Conv2d(3, 4, 3).bfloat16()(x.bfloat16())),
        ("float16 convolution", lambda x: nn.functional.conv2d(x.half(), x.half()[:1])),
        (
            "bfloat16 attention",
            lambda x: nn.TransformerEncoderLayer(4, 2, 8).bfloat16().eval()(x[0].bfloat16()),
        ),
        (
            "bfloat16 attention",
            lambda x: nn.functional.scaled_dot_product_attention(*3 * [x.bfloat16()]),
        ),
    ],
)
def test_the_guard_stops_what_would_kill(missing: str, function) -> None:
    images = torch.rand(1, 3, 4, 4)
    with guarded({missing}), pytest.raises(AssertionError, match=missing):
        function(images)
    with guarded({missing}):
        nn.Conv2d(3, 4, 3)(images)
        nn.TransformerEncoderLayer(4, 2, 8)(images[0])


def test_marked_tests_are_skipped_where_the_ability_is_missing(tmp_path) -> None:
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0"]
    chosen = ["-k", "half_model or random_model", "tests/features"]
    environment = {k: v for k, v in os.environ.items() if k != MISSING}
    environment[SIMULATE] = "bfloat16 convolution"
    done = subprocess.run(
        [*program, *chosen], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on this processor has no bfloat16 convolution: SIGILL" in done.stdout
    assert "2 passed, 3 skipped" in done.stdout
