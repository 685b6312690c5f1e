import pytest

from goen import progress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standard error that looks like a terminal."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")


@pytest.mark.usefixtures("terminal")
def test_bars_are_off_unless_asked_for() -> None:
    assert progress.bar().disable
    with progress.shown():
        assert not progress.bar().disable
        with progress.shown(False):
            assert progress.bar().disable
        assert not progress.bar().disable
    assert progress.bar().disable
    progress.show()
    try:
        assert not progress.bar().disable
    finally:
        progress.show(False)
    assert progress.bar().disable


def test_bars_are_off_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    with progress.shown():
        assert progress.bar().disable


def test_a_bar_that_is_off_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.bar() as bar:
        bar.advance(bar.add_task("training", total=2, status=""))
    with progress.download_bar("downloading") as bar:
        bar.advance(bar.add_task("", total=2))
    with progress.spinner("waiting"):
        pass
    assert capfd.readouterr() == ("", "")
