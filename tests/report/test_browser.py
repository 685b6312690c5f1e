"""The pages in a real browser, at the width of a desktop and of a phone."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from PIL import Image

from goen.report import write_board
from goen.report.summary import read_study
from tests.report.browser import CHROMIUM, SECONDS, WIDTHS, chromium, look_at
from tests.report.by_hand import STUDIES

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.xdist_group("report"),
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="NO CHROMIUM HERE: the report was not opened in a browser. Debian: apt-get install "
        "chromium",
    ),
]


Scheme = Literal["light", "dark"]
# Text and background.
COLOURS = {
    "light": ["rgb(26, 26, 26)", "rgb(255, 255, 255)"],
    "dark": ["rgb(230, 230, 230)", "rgb(21, 23, 26)"],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("study", ["run", "no_head", *STUDIES])
def test_it_renders_whole_and_alone(
    study: str, scheme: Scheme, reports: dict[str, Path], browser: Browser
) -> None:
    look = look_at(browser, reports[study] / "report.html", scheme)
    assert look.console == []
    assert [found["width"] for found in look.findings] == list(WIDTHS)
    for found in look.findings:
        assert "on digits" in found["title"]
        assert found["requests"] == []
        assert found["overflow"] == 0
        assert found["beyond"] == []
        assert found["tables"] >= 3
        assert len(found["images"]) >= 4
        assert all(natural > 0 and shown > 100 for natural, shown in found["images"])
        assert found["colour"] == COLOURS[scheme]


@contextmanager
def opened(
    browser: Browser, file: Path, width: int = 1200, scheme: Scheme = "light"
) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    try:
        page = context.new_page()
        page.goto(file.as_uri(), wait_until="load", timeout=SECONDS * 1000)
        yield page
    finally:
        context.close()


def column(page: Page, table: str, index: int) -> list[str]:
    rows = page.locator(f"#table-{table} tbody tr:not(.part)")
    return [rows.nth(i).locator("td").nth(index).inner_text() for i in range(rows.count())]


def labels(page: Page, table: str) -> list[str]:
    return page.locator(f"#table-{table} tbody tr:visible th").all_inner_texts()


def test_a_table_sorts_by_click_and_by_keyboard(reports: dict[str, Path], browser: Browser) -> None:
    with opened(browser, reports["bench"] / "report.html") as page:
        as_written = labels(page, "cost")
        headers = page.locator("#table-cost thead th[scope=col]")
        assert headers.first.get_attribute("aria-sort") is None
        headers.first.get_by_role("button").click()
        assert column(page, "cost", 0) == ["180", "120", "60"]
        assert labels(page, "cost") == ["GOEN", "KNN", "Max softmax"]  # without titles of parts
        assert headers.first.get_attribute("aria-sort") == "descending"
        headers.first.get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert column(page, "cost", 0) == ["60", "120", "180"]
        assert headers.first.get_attribute("aria-sort") == "ascending"
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        assert column(page, "cost", 1) == ["2.50", "1.50", "0.50"]
        assert headers.first.get_attribute("aria-sort") is None
        assert headers.nth(1).get_attribute("aria-sort") == "descending"
        page.keyboard.press("Space")
        page.keyboard.press("Space")
        assert labels(page, "cost") == as_written
        assert "predictive" in as_written
        assert headers.nth(1).get_attribute("aria-sort") is None


def test_numbers_sort_by_value_and_missing_ones_come_last(
    reports: dict[str, Path], browser: Browser
) -> None:
    with opened(browser, reports["geometry"] / "report.html") as page:
        titles = page.locator("#table-z_train thead th[scope=col]").all_inner_texts()
        for name, down in {
            "condition number": ["1624", "812", "812", "n/a"],  # as text 812 would come before 1624
            "nc3": ["0.7", "n/a", "n/a", "n/a"],
        }.items():
            index = titles.index(name)
            button = page.locator("#table-z_train thead th[scope=col]").nth(index).locator("button")
            button.click()
            assert column(page, "z_train", index) == down
            button.click()
            there = [text for text in down if text != "n/a"]
            assert column(page, "z_train", index) == there[::-1] + ["n/a"] * down.count("n/a")


def test_a_table_wider_than_the_page_says_that_it_scrolls(
    reports: dict[str, Path], browser: Browser
) -> None:
    hints = """() => [...document.querySelectorAll(".scroll")].map(box => [
        box.scrollWidth > box.clientWidth + 1, getComputedStyle(box, "::before").content])"""
    for width in WIDTHS:
        with opened(browser, reports["bench"] / "report.html", width) as page:
            page.wait_for_timeout(200)
            boxes = page.evaluate(hints)
            assert any(wide for wide, _ in boxes) == (width == min(WIDTHS))
            for wide, text in boxes:
                assert ("scroll sideways" in text) == wide


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_have_the_background_of_the_page(
    scheme: Scheme, reports: dict[str, Path], browser: Browser
) -> None:
    with opened(browser, reports["bench"] / "report.html", scheme=scheme) as page:
        figure = page.locator("figure img").first
        with Image.open(io.BytesIO(figure.screenshot(timeout=SECONDS * 1000))) as image:
            shown = image.convert("RGB").getcolors(1 << 20)
    assert shown is not None
    most = max(shown)[1]
    assert f"rgb{most}" == COLOURS[scheme][1]


def test_a_bad_page_would_be_noticed(tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "bad.html"
    (tmp_path / "beside.css").write_text("table { color: red }")
    page.write_text(
        "<!doctype html><title>bad</title><link rel='stylesheet' href='beside.css'>"
        "<img src='https://example.com/a.png' alt=''><div style='width:2000px'>wide</div>"
        "<script>console.error('broken'); new WebSocket('wss://example.com/s'); nowhere()</script>"
    )
    look = look_at(browser, page)
    assert look.console.count("error: broken") == len(WIDTHS)
    assert sum("nowhere is not defined" in message for message in look.console) == len(WIDTHS)
    for found in look.findings:
        assert found["overflow"] > 0
        assert found["beyond"]
        beside = (tmp_path / "beside.css").as_uri()
        outside = [beside, "https://example.com/a.png", "wss://example.com/s"]
        assert sorted(found["requests"]) == outside
        assert found["images"][0][0] == 0


def test_a_dark_scheme_would_be_noticed(tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "dark.html"
    page.write_text(
        "<!doctype html><title>dark</title><style>@media (prefers-color-scheme: dark)"
        "{ body { color: rgb(1, 2, 3) } }</style><p>text"
    )
    for scheme in ("light", "dark"):
        for found in look_at(browser, page, scheme).findings:
            assert (found["colour"][0] == "rgb(1, 2, 3)") == (scheme == "dark")


def test_rows_are_chosen_by_words_and_by_name(tmp_path: Path, browser: Browser) -> None:
    kept = Path(__file__).parents[2] / "results" / "cifar10" / "baselines-42.jsonl"
    file = write_board({"baselines-42": read_study(kept)}, tmp_path / "board")
    with opened(browser, file) as page:
        section = page.locator("section").nth(1)
        everything = labels(page, "board-cifar10")
        status = section.get_by_role("status")
        assert status.inner_text() == "31 of 31 rows"
        logits = section.get_by_role("button", name="logits", exact=True)
        logits.click()
        assert logits.get_attribute("aria-pressed") == "true"
        ordinary = "ordinary network (preset short)"
        found = ["Energy", "GEN", "Max logit", "Max softmax"]
        assert sorted(labels(page, "board-cifar10")) == sorted([*found, ordinary])
        assert status.inner_text() == "4 of 31 rows"
        section.get_by_role("button", name="held-out", exact=True).press("Enter")
        assert "Temperature scaling" in labels(page, "board-cifar10")
        logits.click()  # every method has logits
        assert {*found, "Temperature scaling"} <= {*labels(page, "board-cifar10")}
        logits.click()
        section.get_by_role("searchbox").fill("max ")
        assert labels(page, "board-cifar10")[0] == ordinary
        page.locator("#table-board-cifar10 thead button").nth(1).click()  # by mean rank
        assert labels(page, "board-cifar10") == ["Max softmax", "Max logit"]
        section.get_by_role("searchbox").fill("")
        logits.click()
        section.get_by_role("button", name="held-out", exact=True).click()
        assert len(labels(page, "board-cifar10")) == 31
        header = page.locator("#table-board-cifar10 thead button").nth(1)
        header.click()
        header.click()
        assert labels(page, "board-cifar10") == everything
