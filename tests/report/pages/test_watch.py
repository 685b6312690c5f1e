"""The page of ``goen watch``: its numbers, its images, and the page in a browser."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import binomtest

from goen.errors import ArtifactError
from goen.monitor import Monitor
from goen.monitor.keeping import MonitorSettings, open_monitor_folder
from goen.report import write_report
from goen.report.figures.watch import flagged_band
from goen.report.pages import watch as pages_watch
from goen.report.pages.watch import WatchFolder, is_watch, read_watch, window_size
from goen.report.table import Table
from tests.monitor.predictions import digit_gate
from tests.monitor.test_journal import score_rows
from tests.report.browser import CHROMIUM, WIDTHS, chromium, look_at
from tests.report.reading import page_text, tables
from tests.report.test_browser import COLOURS

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def alarmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A watch with an alarm, and its report; some of its images are there, others are not."""
    folder = tmp_path_factory.mktemp("watch")
    rows = [*score_rows(400), *score_rows(200, seed=1, shift=2.5)]
    for number, row in enumerate(rows):
        row["path"] = str(folder / "images" / f"{number + 1}.png")
    with open_monitor_folder(folder, digit_gate(), "my-gate", MonitorSettings()) as kept:
        (folder / "images").mkdir()
        for number in range(401, 601, 2):
            pixels = np.full((8, 8, 3), number % 256, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        kept.add_rows(rows[:300])
        kept.add_rows(rows[300:])
        assert kept.monitor.state.alarm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("goen.report.figures.style.FORMS", ("svg",))
        write_report(folder)
    return folder


@pytest.fixture(scope="module")
def watch(alarmed: Path) -> WatchFolder:
    return read_watch(alarmed)


def test_a_watch_is_read_as_it_was_written(alarmed: Path, watch: WatchFolder) -> None:
    assert is_watch(alarmed)
    assert not is_watch(alarmed / "images")
    assert len(watch) == 600
    assert watch.gate == "my-gate"
    assert watch.paths[0].endswith("/1.png")
    assert watch.p_values.shape == watch.log_e_value.shape == (600, 10)  # five properties
    assert watch.log_e_value[-1] == pytest.approx(watch.monitor.streams.log_e_value, abs=1e-4)
    assert watch.flagged[-200:].mean() > watch.flagged[:400].mean()
    assert watch.events[0].text("event") == "started"


def test_the_page_says_what_happened(alarmed: Path, watch: WatchFolder) -> None:
    text = page_text(alarmed)
    state = watch.state
    assert "<title>Monitor of my-gate: ALARM</title>" in text
    assert f"Alarm at image {state.alarm_at:,}" in text
    assert "ever raises an alarm is at most 0.01" in text
    assert "not that they are bad" in text
    shown = tables(alarmed / "report.html")["streams"].cells()
    for name, stream in state.streams.items():
        assert float(shown["", name, "log e-value"].text) == pytest.approx(
            stream.log_e_value, abs=0.006
        )
        at = shown["", name, "moved: found at image"].text
        assert at == (f"{stream.change_point.at:,}" if stream.change_point else "–")


def test_values_beyond_the_figure_and_the_shaded_part_are_explained(
    alarmed: Path, watch: WatchFolder
) -> None:
    most = 3 * float(np.log(100))
    assert watch.log_e_value.max() > most
    text = page_text(alarmed)
    assert f"Log e-values above {most:.1f} are drawn there." in text
    assert "Shaded: from the estimated change to the alarm." in text
    assert "Band: 95 % interval of each window" in text


def test_the_share_flagged_in_one_window_has_a_visible_interval() -> None:
    one = [np.array([value]) for value in (25.0, 0.04, 0.01, 0.13)]
    [ax] = flagged_band(*one, None).axes
    [bar] = ax.collections
    assert bar.get_paths()[0].vertices[:, 1] == pytest.approx([0.01, 0.13])
    assert ax.get_xlim() == (0, 50)


def test_the_share_flagged_stands_in_the_middle_of_its_window(
    watch: WatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[np.ndarray] = []
    monkeypatch.setattr(pages_watch, "flagged_band", lambda *given: drawn.extend(given[:2]))
    part = replace(watch, flagged=watch.flagged[:550], paths=watch.paths[:550])
    pages_watch._flagged(part)
    centres, shares = drawn
    assert centres.tolist() == [50, 150, 250, 350, 450, 525]
    ends = [(0, 100), (100, 200), (200, 300), (300, 400), (400, 500), (500, 550)]
    assert shares.tolist() == [watch.flagged[a:b].mean() for a, b in ends]


def test_the_classes_before_and_since_are_counted(alarmed: Path, watch: WatchFolder) -> None:
    shown = tables(alarmed / "report.html")["classes"].cells()
    since = watch.state.since
    assert since is not None
    fresh = Monitor(digit_gate())
    classes = fresh.streams.counts[fresh.streams.names.index("predicted class")].counts
    for part, labels in (
        ("held-out images", np.repeat(digit_gate().classes, classes)),
        ("before", watch.labels[: since - 1]),
        ("since", watch.labels[since - 1 :]),
    ):
        for name in digit_gate().classes:
            count = int((labels == name).sum())
            low, high = binomtest(count, len(labels)).proportion_ci()
            cell = shown["", name, part]
            assert cell.text == f"{count / len(labels):.1%}"
            assert cell.interval == f"{low:.1%}–{high:.1%}"


@pytest.mark.parametrize(
    ("images", "size"),
    [
        (1, 100),
        (3000, 100),
        (3001, 250),
        (7500, 250),
        (7501, 500),
        (15_000, 500),
        (15_001, 1000),
        (30_001, 2500),
        (75_001, 5000),
    ],
)
def test_there_are_at_most_thirty_windows_of_a_round_size(images: int, size: int) -> None:
    assert window_size(images) == size


def test_p_values_are_counted_in_tenths_window_by_window(
    watch: WatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, np.ndarray] = {}

    def draw(title: str, shares: np.ndarray, edges: np.ndarray) -> Figure:
        drawn[title] = shares
        assert edges.tolist() == [0, 100, 200, 300, 400, 500, 550]
        return Figure()

    monkeypatch.setattr(pages_watch, "p_value_map", draw)
    short = replace(watch, p_values=watch.p_values[:550], paths=watch.paths[:550])
    _, drawings = pages_watch._p_values(short)
    assert isinstance(drawings, list)
    assert next(iter(drawn)) == "P-values of the score"
    assert len(drawn) == 1 + len({*watch.state.moved} - {"score"})
    for title, shares in drawn.items():
        name = title.removeprefix("P-values of ").replace("the score", "score")
        column = watch.p_values[:550, watch.names.index(name)]
        for row, first in zip(shares, range(0, 600, 100), strict=True):
            part = column[first : first + 100]
            tenths = [int(min(10 * p, 9)) for p in part]
            assert row.tolist() == pytest.approx(
                [tenths.count(n) * 10 / len(part) for n in range(10)]
            )
    last = ", ".join(f"{share:.2g}" for share in drawn["P-values of the score"][-1])
    assert drawings[0].alt.endswith(f"in tenths, times uniform: {last}.")  # type: ignore[union-attr]


def test_of_many_classes_those_whose_share_changed_most_are_shown(
    watch: WatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = pages_watch._classes(watch)
    assert isinstance(table, Table)
    assert table.notes == ()
    classes = [row.label for row in table.rows]
    spread = {row.label: np.ptp([cell.value or 0 for cell in row.cells]) for row in table.rows}
    monkeypatch.setattr(pages_watch, "_MOST_CLASSES", len(classes))
    (every,) = pages_watch._classes(watch)
    assert isinstance(every, Table)
    assert [row.label for row in every.rows] == classes
    monkeypatch.setattr(pages_watch, "_MOST_CLASSES", 2)
    (few,) = pages_watch._classes(watch)
    assert isinstance(few, Table)
    most = sorted(spread, key=lambda name: -spread[name])[:2]
    assert [row.label for row in few.rows] == most
    assert few.notes == (f"2 of {len(classes)} classes, those whose share changed most.",)


def test_the_images_are_those_that_raised_the_e_value_most(
    alarmed: Path, watch: WatchFolder
) -> None:
    state = watch.state
    assert state.since is not None
    assert state.alarm_at is not None
    column = watch.names.index(next(iter(state.moved)))
    values = watch.log_e_value[:, column]
    gains = {n + 1: values[n] - values[n - 1] for n in range(state.since - 1, state.alarm_at)}
    best = sorted(gains, key=lambda n: -gains[n])[:12]
    section = page_text(alarmed).split('<section id="images">')[1].split("</section>")[0]
    listed = re.findall(r"<tr><td>([\d,]+)</td>", section)
    assert [int(n.replace(",", "")) for n in listed] == best
    assert (alarmed / "figures" / "images.svg").is_file()


def test_a_restarted_watch_shows_the_present_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    with open_monitor_folder(tmp_path, digit_gate(), "my-gate", MonitorSettings()) as kept:
        kept.add_rows(score_rows(200, shift=2.5))
        assert kept.monitor.state.alarm
    settings = MonitorSettings()
    with open_monitor_folder(tmp_path, digit_gate(), "my-gate", settings, restart=True) as kept:
        write_report(tmp_path)
        assert "No images have come since the new test began." in page_text(tmp_path)
        kept.add_rows(score_rows(3, seed=1))
        state = kept.monitor.state
    assert not state.alarm
    write_report(tmp_path)
    text = page_text(tmp_path)
    assert "A new test began after image 200." in text
    shown = tables(tmp_path / "report.html")["streams"].cells()
    for name in state.streams:
        assert float(shown["", name, "highest"].text) < state.alarm_line
    rows = read_watch(tmp_path)
    score = rows.names.index("score")
    values = [math.log(0.5), *rows.log_e_value[200:, score]]
    gains = {200 + n: values[n] - values[n - 1] for n in range(1, 4)}
    listed = ", ".join(f"{n} ({rows.paths[n - 1]})" for n in sorted(gains, key=lambda n: -gains[n]))
    assert f"The 3 images that raised the e-value most: numbers {listed}." in text


def test_every_figure_has_an_alternative_text_and_nothing_is_loaded(alarmed: Path) -> None:
    text = page_text(alarmed)
    images = re.findall(r"<img [^>]*>", text)
    assert len(images) >= 4
    assert all(len(re.search(r'alt="([^"]+)"', p)[1]) > 30 for p in images)  # type: ignore[index]
    sources = re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    assert all(source.startswith(("data:", "#")) for source in sources)


def test_a_watch_without_images_and_one_without_alarm_have_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    with open_monitor_folder(tmp_path, digit_gate(), "my-gate", MonitorSettings()):
        pass
    write_report(tmp_path)
    assert "no alarm after 0 images" in page_text(tmp_path).lower()
    with open_monitor_folder(tmp_path, digit_gate(), "my-gate", MonitorSettings()) as kept:
        kept.add_rows(score_rows(30))
    write_report(tmp_path)
    text = page_text(tmp_path)
    assert "No alarm after 30 images" in text
    assert "Bar: 95 % interval of each window" in text
    assert "Shaded" not in text
    assert "are drawn there" not in text
    assert list(tables(tmp_path / "report.html")["classes"].columns) == [
        "held-out images",
        "share",
    ]


def test_a_path_from_outside_is_text_and_not_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    rows = score_rows(30)
    for number, row in enumerate(rows):
        row["path"] = f"<script>alert({number})</script>\0.png"
    with open_monitor_folder(tmp_path, digit_gate(), "<b>gate</b>", MonitorSettings()) as kept:
        kept.add_rows(rows)
    write_report(tmp_path)
    assert page_text(tmp_path).count("<script") == 1  # the page's own
    assert "<script>alert" not in page_text(tmp_path)
    assert "<b>gate" not in page_text(tmp_path)


def test_a_damaged_watch_is_a_sentence(tmp_path: Path) -> None:
    with open_monitor_folder(tmp_path, digit_gate(), "my-gate", MonitorSettings()) as kept:
        kept.add_rows(score_rows(30))
    rows = (tmp_path / "images.jsonl").read_text().splitlines(keepends=True)
    for damaged, message in (
        ("".join(rows[:-1]), "29 rows for 30 images"),
        ("".join([*rows[:-1], "{"]), "line 30, is damaged"),
        ("".join([*rows[:-1], '{"image": 30}\n']), "it has no p"),
    ):
        (tmp_path / "images.jsonl").write_text(damaged)
        with pytest.raises(ArtifactError, match=message):
            write_report(tmp_path)
    Monitor(digit_gate()).save(tmp_path / "monitor.safetensors", overwrite=True)
    with pytest.raises(ArtifactError, match=r"it has no extra\.journal"):
        write_report(tmp_path)


@pytest.mark.skipif(CHROMIUM is None, reason="NO CHROMIUM HERE: the page was not opened")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_whole_and_alone(alarmed: Path, scheme: Literal["light", "dark"]) -> None:
    with chromium() as browser:
        look = look_at(browser, alarmed / "report.html", scheme)
    assert look.console == []
    assert [found["width"] for found in look.findings] == list(WIDTHS)
    for found in look.findings:
        assert found["requests"] == found["beyond"] == []
        assert found["overflow"] == 0
        assert found["tables"] >= 3
        assert all(natural > 0 and shown > 100 for natural, shown in found["images"])
        assert found["colour"] == COLOURS[scheme]
