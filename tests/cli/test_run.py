"""``goen run`` as a person would type it."""

from pathlib import Path

import pytest

from goen.cli.main import main
from goen.io.results import read_results
from goen.studies import PRESETS
from tests.tiny import TINY, tiny_protocol

pytestmark = pytest.mark.xdist_group("finished run")


def test_run_ends_with_the_path_of_its_report(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)  # type: ignore[arg-type]
    monkeypatch.setattr("goen.cli.options.study.protocol", lambda *_, **__: tiny_protocol())
    assert main(["run", "--preset", "tiny", "--out", str(finished)]) == 0
    out = capsys.readouterr().out
    assert "budget full" in out
    rows = read_results(finished / "results.jsonl")
    (accuracy,) = (r.value for r in rows if (r.method, r.metric) == ("classifier", "accuracy"))
    assert f"accuracy on test images: {accuracy:.2%}" in out
    last = out.strip().splitlines()[-1]
    assert last == f"report: {finished / 'report.html'}"
    assert Path(last.removeprefix("report: ")).is_file()
