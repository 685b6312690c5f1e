"""A service: its monitors over restarts, and the gates that it refuses."""

import asyncio
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from goen.data.imageset import Pixels
from goen.errors import UsageError
from goen.gate import Gate, HeldOut
from goen.io.files import MARKER
from goen.monitor.keeping import KeptMonitor, MonitorSettings
from goen.serve.service import FlaggedImages, ServedGate, Service, state_file
from goen.serve.settings import ServeSettings
from tests.monitor.predictions import cues_of, digit_gate, predicted, without_cues
from tests.serve.running import encoded, png, wait_for


def test_a_monitor_that_cannot_count_does_not_end_the_service(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules[Service.__module__], "_TICK_SECONDS", 0.01)
    service = Service({"a": digit_gate()})
    with service.running():
        monitor = service.find("a").monitor
        assert monitor is not None
        good = predicted(digit_gate(), cues_of(20))
        for times in (1, 2):
            monitor.add(replace(good, p_value=good.p_value / 2))
            wait_for(lambda n=times: caplog.text.count("saved again") == n)  # type: ignore[misc]
            assert caplog.text.count("The monitor of a could not count") == times


def test_an_alarm_is_logged_once_even_if_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: KeptMonitor) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(KeptMonitor, "save", full)
    with (service := Service({"a": digit_gate()})).running():
        monitor = service.find("a").monitor
        assert monitor is not None
        monitor.add(predicted(digit_gate(), cues_of(40) + 9))
        for _ in range(3):
            service._save()
        assert 'goen_state_unsaved{gate="a"} 1.0' in service.metrics.text().decode()
    assert caplog.text.count("gate a: alarm at image") == 1
    assert caplog.text.count("was not saved: [Errno 28]") == 1
    assert service.unsaved == {"a"}
    monkeypatch.undo()
    service._save()
    assert "The monitor of a is saved again" in caplog.text
    assert 'goen_state_unsaved{gate="a"} 0.0' in service.metrics.text().decode()
    assert service.unsaved == set()


def test_a_service_keeps_its_state_and_is_alone_in_its_folder(tmp_path: Path) -> None:
    settings = ServeSettings(state=tmp_path / "state")
    image = np.zeros((3, *digit_gate().image_size), np.uint8)

    async def score(served: ServedGate, image: Pixels) -> None:
        for _ in range(3):
            await served.queue.score([lambda: image])

    for expected in (3, 6):
        service = Service({"digits": digit_gate()}, settings)
        with service.running():
            asyncio.run(score(service.find(None), image))
        assert state_file(tmp_path / "state", "digits").is_file()
        monitor = service.find(None).monitor
        assert monitor is not None
        assert monitor.state.images == expected
    assert KeptMonitor(digit_gate(), MonitorSettings(), monitor.file).state.images == 6


def few_held_out() -> Gate:
    """A gate with as many held-out images as its rate needs, which are too few for a monitor."""
    known = digit_gate().held_out
    assert known.labels is not None
    assert known.cues is not None
    held_out = HeldOut(known.scores[:19], known.labels[:19], known.cues[:19])
    return replace(digit_gate(), held_out=held_out)


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (without_cues, "saved without the cues of its held-out images"),
        (few_held_out, "needs at least 20 held-out scores, got 19"),
    ],
)
def test_a_gate_without_what_a_monitor_needs_is_served_without_one(
    gate: Callable[[], Gate], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service({"digits": gate()}, ServeSettings(state=tmp_path))
    with service.running():
        assert service.find(None).monitor is None
    assert "The images of the gate digits are not monitored" in caplog.text
    assert reason in caplog.text


def test_a_gate_that_takes_no_pictures_is_refused() -> None:
    features = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    gate = Gate.fit_outputs(features[:100], None, features[100:])
    with (
        pytest.raises(UsageError, match="takes no images"),
        Service({"features": gate}).running(),
    ):
        pass


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "a\n", "ä", "x" * 65])
def test_names_that_cannot_be_part_of_an_address_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="NAME=GATE"):
        Service({name: digit_gate()})
    with pytest.raises(UsageError, match="at least one gate"):
        Service({})


# -- flagged images --------------------------------------------------------------------------

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 8, 6), dtype=np.uint8)
SUFFIXES = {"BMP": "bmp", "GIF": "gif", "JPEG": "jpg", "PNG": "png", "TIFF": "tif", "WEBP": "webp"}


@pytest.mark.parametrize(("form", "suffix"), SUFFIXES.items())
def test_images_are_kept_as_they_came(form: str, suffix: str, tmp_path: Path) -> None:
    kept = FlaggedImages(tmp_path / "new" / "folder", 10)
    data = encoded(IMAGE, form)
    kept.keep(data)
    (file,) = (tmp_path / "new" / "folder").glob("flagged-*")
    assert file.suffix == f".{suffix}"
    assert file.read_bytes() == data


def test_the_oldest_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    kept = FlaggedImages(tmp_path, 2)
    (tmp_path / "mine.png").write_bytes(b"mine")
    (tmp_path / "flagged-mine.png").write_bytes(b"mine")
    for number in range(3):
        kept.keep(png(IMAGE + np.uint8(number)))
    FlaggedImages(tmp_path, 2).keep(png(IMAGE + np.uint8(3)))  # those of an earlier service count
    left = sorted(tmp_path.glob("flagged-2*"))
    assert [file.read_bytes() for file in left] == [png(IMAGE + np.uint8(n)) for n in (2, 3)]
    others = {file.name for file in tmp_path.iterdir()} - {file.name for file in left}
    assert others == {"mine.png", "flagged-mine.png", MARKER}


def test_kept_images_are_private(tmp_path: Path) -> None:
    kept = FlaggedImages(tmp_path / "kept", 10)
    kept.keep(png(np.zeros((3, 4, 4), np.uint8)))
    (file,) = (tmp_path / "kept").glob("flagged-*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
