"""``goen serve`` as a person would type it."""

import sys
from pathlib import Path

import pytest

from goen.cli.main import main
from goen.cli.serve import TOKEN, _is_loopback, _named, _token
from goen.errors import UsageError
from tests.monitor.predictions import digit_gate


def test_gates_have_the_names_of_their_folders_unless_others_are_given() -> None:
    assert _named(["runs/digits", "animals=cifar10-w16"]) == {
        "digits": "runs/digits",
        "animals": "cifar10-w16",
    }
    spaces = _named(["runs/Field photos (2026)", "runs/_x", "runs/a.b-c_"])
    assert [*spaces] == ["Field-photos-2026-", "x", "a.b-c_"]
    assert [*spaces.values()] == ["runs/Field photos (2026)", "runs/_x", "runs/a.b-c_"]
    with pytest.raises(UsageError, match="Two gates have the name a-b"):
        _named(["runs/a b", "runs/a-b"])
    assert _named(["a=b=c"]) == {"a=b": "c"}  # refused as a name later


def test_wrong_options_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    digit_gate().save(gate)
    random = tmp_path / "random"
    random.write_bytes(b"\xff" * 32)
    cases = {
        ("a=x", "a=y"): "Two gates have the name a",
        ("x", "y", "--model", "m:f"): "--model and --preprocess go with one gate",
        ("cifar10-w16", "--max-mb", "0"): "bytes of a request must be an integer, at least 1",
        ("cifar10-w16", "--alarm-probability", "1"): "alarm_probability must be a number",
        ("cifar10-w16", "--token-file", str(random)): f"{random} should hold a token",
        ("cifar10-w16", "--token-file", "/dev/zero"): "/dev/zero should hold a token",
        ("cifar10-w16", "--host", "192.0.2.1"): "Cannot listen on 192.0.2.1",
        ("a b=cifar10-w16",): "NAME=GATE",
        (str(gate),): "model",
    }
    for words, sentence in cases.items():
        assert main(["serve", *words, "--engine", "torch"]) == 2
        assert sentence in capsys.readouterr().err


def test_the_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert _token(None) is None
    monkeypatch.setenv(TOKEN, "from the environment")
    assert _token(None) == "from the environment"
    for empty in ("", " \n"):
        monkeypatch.setenv(TOKEN, empty)
        with pytest.raises(UsageError, match="is set and empty"):
            _token(None)
    (tmp_path / "token").write_text("from a file\n")
    assert _token(tmp_path / "token") == "from a file"


def test_addresses_of_this_machine_alone() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert _is_loopback(host)
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        assert not _is_loopback(host)


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("goen.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 2
    assert "goen serve needs uvicorn: pip install 'goen[serve]'" in capsys.readouterr().err
