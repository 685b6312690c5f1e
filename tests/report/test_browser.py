"""The pages in a real browser, at the width of a desktop and of a phone."""

from pathlib import Path

import pytest

from .browser import CHROMIUM, WIDTHS, look_at
from .by_hand import STUDIES

pytestmark = [
    pytest.mark.xdist_group("report"),
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="NO CHROMIUM HERE: the report was not opened in a browser. Debian: apt-get install "
        "chromium",
    ),
]


@pytest.mark.parametrize("study", ["run", "no_head", *STUDIES])
def test_it_renders_whole_and_alone(study: str, reports: dict[str, Path], tmp_path: Path) -> None:
    look = look_at(reports[study] / "report.html", tmp_path)
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


def test_a_bad_page_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><title>bad</title><img src='https://example.com/a.png' alt=''>"
        "<div style='width:2000px'>wide</div><script>console.error('broken')</script>"
    )
    look = look_at(page, tmp_path)
    assert any("broken" in line for line in look.console)
    for found in look.findings:
        assert found["overflow"] > 0
        assert found["beyond"]
        assert found["requests"] == ["https://example.com/a.png"]
        assert found["pictures"][0][0] == 0
