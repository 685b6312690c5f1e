"""A finished run for all tests of commands."""

from pathlib import Path

import pytest

from goen.cli.main import main
from goen.studies import PRESETS
from tests.tiny import TINY, tiny_protocol


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of goen run; not to be changed."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "tiny", TINY)  # type: ignore[arg-type]
        patch.setattr("goen.cli.options.study.protocol", lambda *_, **__: tiny_protocol())
        assert main(["run", "--preset", "tiny", "--out", str(out)]) == 0
    return out
