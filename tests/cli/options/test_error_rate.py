"""The options --error-rate and --error-confidence, by themselves and of a gate that is opened."""

from pathlib import Path

import pytest

from goen.cli.main import main
from goen.cli.options.error_rate import asked_error_rate
from goen.cli.options.model import RateOptions
from goen.errors import FitError, UsageError
from goen.gate.error_rate import ErrorRate
from tests.gate.test_error_rate import make_gate


def test_what_is_not_given_is_the_gates() -> None:
    saved = ErrorRate(0.02, 0.99, "score")
    assert asked_error_rate(None, None) is None
    assert asked_error_rate(0.1, None) == ErrorRate(0.1, 0.95, "confidence")
    assert asked_error_rate(0.1, 0.9) == ErrorRate(0.1, 0.9, "confidence")
    assert asked_error_rate(None, None, saved) == saved
    assert asked_error_rate(0.1, None, saved) == ErrorRate(0.1, 0.99, "score")
    assert asked_error_rate(None, 0.9, saved) == ErrorRate(0.02, 0.9, "score")
    with pytest.raises(UsageError, match="--error-confidence goes with --error-rate"):
        asked_error_rate(None, 0.9)
    with pytest.raises(UsageError, match="An error rate must be"):
        asked_error_rate(2.0, None)


def test_another_rate_replaces_that_of_the_gate(tmp_path: Path) -> None:
    saved = make_gate().with_error_rate(0.02)
    saved.save(tmp_path / "gate")
    place = str(tmp_path / "gate")
    assert RateOptions().open(place).error_rate == saved.error_rate
    # The earlier rate is not kept where hardly an image passes, and nobody asks for it.
    with pytest.raises(FitError, match="No images can be accepted"):
        RateOptions(false_alarm_rate=0.99).open(place)
    opened = RateOptions(false_alarm_rate=0.99, error_rate=0.5).open(place)
    assert opened.error_rate == ErrorRate(0.5)
    with pytest.raises(UsageError, match="without --per-class"):
        RateOptions(per_class=True).open(place)


def test_a_fit_refuses_it_before_any_image_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = ["fit", "--features", "nowhere.npz", "--held-out", "nowhere.npz"]
    assert main([*fit, "--out", str(tmp_path / "gate"), "--error-confidence", "0.9"]) == 2
    assert "--error-confidence goes with --error-rate" in capsys.readouterr().err
    assert main([*fit, "--out", str(tmp_path / "gate"), "--error-rate", "1.5"]) == 2
    assert "An error rate must be" in capsys.readouterr().err
