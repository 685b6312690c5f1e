"""Reports of every study, each written once for all tests."""

from dataclasses import replace
from pathlib import Path

import pytest

from goen.report import write_report
from goen.studies import PRESETS, RunConfig, run
from tests.report.by_hand import STUDIES
from tests.tiny import TINY, tiny_protocol


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a run with a head, one without (``no_head``), and of every other study."""
    root = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "tiny", TINY)  # type: ignore[arg-type]
        without = replace(tiny_protocol(), calibration_ood={})
        for name, protocol in (("run", tiny_protocol()), ("no_head", without)):
            run(RunConfig(preset="tiny"), protocol, root / name)
        folders = {name: make(root / name) for name, make in STUDIES.items()}
        write_report(folders["bench"])
        # PDF and PNG are the slow part and one study shows them.
        patch.setattr("goen.report.figures.style.FORMS", ("svg",))
        for name in ("run", "no_head", *STUDIES):
            if name != "bench":
                write_report(root / name)
    return {name: root / name for name in ("run", "no_head", *STUDIES)}


@pytest.fixture(params=["run", "no_head"])
def folder(request: pytest.FixtureRequest, reports: dict[str, Path]) -> Path:
    """A run with a calibration head, and one without."""
    return reports[request.param]
