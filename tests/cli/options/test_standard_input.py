import io
import sys

import pytest

from goen.cli.main import main
from goen.cli.options.standard_input import standard_input


def test_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n")))
    assert standard_input().read() == b"\xff\n"


@pytest.mark.parametrize("command", ["score", "watch"])
def test_without_one_there_is_a_sentence(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main([command, "-"]) == 2
    assert "Standard input is closed" in capsys.readouterr().err
