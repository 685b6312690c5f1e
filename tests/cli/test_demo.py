"""``goen demo`` as a newcomer would type it."""

import re
from pathlib import Path

import numpy as np
import pytest

import goen.cli.demo
import goen.cli.run
from goen.cli.demo import ood_pictures
from goen.cli.main import main
from goen.cli.options.study import StudyOptions
from goen.data.images.decoding import read_image
from goen.scoring.rows import most_unusual_cue
from tests.gate.test_bundled import bundle, stand_in

NAMES = ["temple", "flower", "Grace Hopper", "digit 3", "digit 5", "digit 8", "noise"]


def test_the_second_part_is_goen_run() -> None:
    assert goen.cli.demo.run_command is goen.cli.run.run_command


def test_ood_pictures_first_and_then_goen_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[StudyOptions] = []

    def run_command(*, options: StudyOptions) -> int:
        ran.append(options)
        print("goen run")
        return 0

    monkeypatch.setattr("goen.cli.demo.run_command", run_command)
    monkeypatch.setattr("goen.gate.bundled._FOLDER", tmp_path / "gates")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["demo", "--out", str(tmp_path / "out")]) == 0  # no gate is bundled: it just runs
    assert capsys.readouterr().out == "goen run\n"
    bundle(tmp_path / "gates", monkeypatch)
    assert main(["demo"]) == 0
    assert ran == [StudyOptions(out=tmp_path / "out"), StudyOptions()]
    out = capsys.readouterr().out
    assert out.endswith("\n\ngoen run\n")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.removesuffix("goen run\n"))
    assert max(map(len, shown.splitlines())) <= 80
    text = " ".join(shown.split())
    assert (
        "cifar10 classifies 0, 1, 2, 3, 4, 5, 6. None of the pictures below shows one of these"
        in text
    )
    assert "at most 5.0% on average: the false-alarm rate" in text
    found = stand_in().predict(np.stack(list(ood_pictures((32, 32)).values())))
    assert f"{found.is_ood.sum()} of 7 OOD pictures flagged" in text

    monkeypatch.delenv("FORCE_COLOR")
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, row in zip(NAMES, found.rows(), strict=True):
        decision = "flagged" if row["p_value"] <= 0.05 else "passed"
        words = [name, row["label"], f"{row['confidence']:.0%}", f"{row['p_value']:.2g}", decision]
        pattern = " +".join([*words, most_unusual_cue(row)])
        assert any(re.fullmatch(pattern, line) for line in lines), pattern


def test_pictures_come_in_any_size_and_are_what_they_are_called(tmp_path: Path) -> None:
    small = ood_pictures((32, 32))
    assert list(small) == NAMES
    assert len({pixels.tobytes() for pixels in small.values()}) == 7
    for name, pixels in ood_pictures((24, 40)).items():
        assert (pixels.shape, pixels.dtype) == ((3, 24, 40), np.uint8), name
    from sklearn.datasets import images

    temple = Path(images.__path__[0]) / "china.jpg"
    assert np.array_equal(small["temple"], read_image(temple, (32, 32)))


def test_matplotlib_without_its_samples_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matplotlib.cbook.get_sample_data", lambda *_, **__: "/nowhere.jpg")
    assert list(ood_pictures((32, 32))) == [n for n in NAMES if n != "Grace Hopper"]
