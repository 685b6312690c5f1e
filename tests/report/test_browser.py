"""The pages in a real browser, at the width of a desktop and of a phone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser

from .browser import CHROMIUM, WIDTHS, chromium, look_at
from .by_hand import STUDIES

pytestmark = [
    pytest.mark.xdist_group("report"),
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="NO CHROMIUM HERE: the report was not opened in a browser. Debian: apt-get install "
        "chromium",
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("study", ["run", "no_head", *STUDIES])
def test_it_renders_whole_and_alone(
    study: str, scheme: Literal["light", "dark"], reports: dict[str, Path], browser: Browser
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
        assert len(found["pictures"]) >= 4
        assert all(natural > 0 and shown > 100 for natural, shown in found["pictures"])
        assert found["colour"] == ["rgb(26, 26, 26)", "rgb(255, 255, 255)"]


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
        assert found["pictures"][0][0] == 0


def test_a_dark_scheme_would_be_noticed(tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "dark.html"
    page.write_text(
        "<!doctype html><title>dark</title><style>@media (prefers-color-scheme: dark)"
        "{ body { color: rgb(1, 2, 3) } }</style><p>text"
    )
    for scheme in ("light", "dark"):
        for found in look_at(browser, page, scheme).findings:
            assert (found["colour"][0] == "rgb(1, 2, 3)") == (scheme == "dark")
