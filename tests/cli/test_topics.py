"""Topics of help, and what is installed."""

import re
from importlib.metadata import version

import pytest

from goen.cli import topics
from goen.cli.main import main


@pytest.mark.parametrize(
    ("topic", "said"), [("exit-codes", "143  stopped by SIGTERM"), ("environment", "GOEN_DATA")]
)
def test_help_has_topics(topic: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", topic]) == 0
    assert said in capsys.readouterr().out


def test_a_verbose_version_names_versions_processor_and_extras(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--version", "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert f"numpy        {version('numpy')}\n" in shown
    assert "processor" in shown
    assert re.search(r"^extras +.*\bparquet\b", shown, re.MULTILINE)


def test_an_extra_is_there_if_all_its_packages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=2; extra == 'some'", 'no-such-package[a]>=1; extra == "other"', "scipy>1"]
    monkeypatch.setattr(topics, "requires", lambda _: wanted)
    assert topics._is_installed("some")
    assert not topics._is_installed("other")
