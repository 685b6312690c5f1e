"""The page in a real browser: what it shows is what ``goen score`` writes."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from goen.data import protocol
from goen.data.sets.embedded import noise
from goen.escaping import csv_line
from goen.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.scoring.rows import sort_rows
from goen.serve.settings import Limits, ServeSettings
from tests.image_sources import scored_rows
from tests.monitor.predictions import digit_gate
from tests.report.browser import CHROMIUM, SECONDS, WIDTHS, chromium
from tests.serve.running import Running, encoded, running

pytestmark = [
    pytest.mark.xdist_group("serve"),
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="NO CHROMIUM HERE: the page was not opened in a browser. Debian: apt-get install "
        "chromium",
    ),
]
FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
Scheme = Literal["light", "dark"]
NAMES = ["=1+1.png", "a,b.png", "<b>.png", "d.png", "e.png", "f.png", "g.png", "h.png"]

# Drops or pastes files as a person would: an event of the window that carries them.
GIVE = """([kind, files]) => {
  const data = new DataTransfer();
  for (const [name, content] of files) {
    const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
    data.items.add(new File([bytes], name, { type: "image/png" }));
  }
  const event = kind === "paste"
    ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
    : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


def strict_gate() -> Gate:
    return digit_gate().with_false_alarm_rate(0.02)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(gates={"digits": digit_gate(), "strict": strict_gate()}) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("127.0.0.1", *FAKE_CAMERA) as running_browser:
        yield running_browser


@pytest.fixture(scope="module")
def images() -> dict[str, bytes]:
    images = [*protocol("digits").test.read(range(5)), *noise(3, 0, stream=0).read()]
    forms = ("PNG", "JPEG", "PNG", "TIFF", "PNG", "PNG", "BMP", "PNG")
    return {n: encoded(i, f) for n, i, f in zip(NAMES, images, forms, strict=True)}


@pytest.fixture(scope="module")
def rows(images: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> dict[str, ScoreRow]:
    """What ``goen score`` writes for each image, by name."""
    folder = tmp_path_factory.mktemp("images")
    for number, data in enumerate(images.values()):
        (folder / str(number)).write_bytes(data)
    files = [folder / str(number) for number in range(len(images))]
    return dict(zip(images, scored_rows(digit_gate(), *files), strict=True))


@contextmanager
def opened(
    browser: Browser, served: Running, width: int = 1200, scheme: Scheme = "light"
) -> Iterator[Page]:
    """The page; nothing is on its console, and nothing was asked of another host."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, permissions=["camera"]
    )
    context.set_default_timeout(SECONDS * 1000)
    try:
        page = context.new_page()
        noted: list[str] = []
        page.on("console", lambda message: noted.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: noted.append(f"uncaught: {error}"))
        page.on("request", lambda request: noted.append(request.url))
        page.goto(served.url, wait_until="load")
        expect(page.locator("h1")).to_have_text("goen")
        yield page
    finally:
        context.close()
    own = ("data:", "blob:", served.url)
    assert [line for line in noted if not line.startswith(own)] == []


def give(page: Page, images: dict[str, bytes], kind: str = "drop") -> None:
    expect(page.locator("#choose")).to_be_visible()
    files = [[name, base64.b64encode(data).decode()] for name, data in images.items()]
    page.evaluate(GIVE, [kind, files])


def cards(page: Page, count: int) -> dict[str, str]:
    """The text of each card by its name, in their order, when all have come."""
    done = page.locator("#cards li:not(.waiting)")
    expect(done).to_have_count(count, timeout=SECONDS * 1000)
    names = page.locator("#cards .name").all_inner_texts()
    return dict(zip(names, page.locator("#cards .card").all_inner_texts(), strict=True))


def decisions(page: Page) -> dict[str, str]:
    names = page.locator("#cards li:has(.decision) .name").all_inner_texts()
    return dict(zip(names, page.locator("#cards .decision").all_inner_texts(), strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_dropped_images_show_what_goen_score_writes(
    browser: Browser,
    served: Running,
    images: dict[str, bytes],
    rows: dict[str, ScoreRow],
    width: int,
    scheme: Scheme,
) -> None:
    with opened(browser, served, width, scheme) as page:
        give(page, {**images, "no image.txt": b"text"})
        found = cards(page, len(images) + 1)
        assert "Send JPEG" in found.pop("no image.txt")
        assert set(found) == set(rows)
        for name, text in found.items():
            row = rows[name]
            assert text.split()[0] == row["label"]
            assert f"{100 * float(row['confidence'] or 0):.0f} %" in text
            numbers = page.locator("#cards li", has_text=name).locator(".bars i:nth-child(3n)")
            shown = [float(number) for number in numbers.all_inner_texts()]
            cues = [row[f"p_{cue}"] for cue in digit_gate().detector.cue_names]
            # Two digits; a held-out image more or less where rounding decides.
            least = 1 / (1 + digit_gate().num_held_out)
            assert shown == pytest.approx([row["p_value"], *cues], rel=0.06, abs=1.1 * least)
        expected = {name: "flagged" if row["is_ood"] else "passed" for name, row in rows.items()}
        assert decisions(page) == expected
        beyond = page.evaluate(
            """() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"""
        )
        assert beyond[0] == beyond[1]
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour == {"light": "rgb(246, 247, 248)", "dark": "rgb(20, 22, 26)"}[scheme]


def test_the_slider_decides_as_the_gate_would(
    browser: Browser, served: Running, images: dict[str, bytes], rows: dict[str, ScoreRow]
) -> None:
    with opened(browser, served) as page:
        give(page, images)
        cards(page, len(images))
        field = page.get_by_label("False-alarm rate as a number")
        slider = page.get_by_label("False-alarm rate", exact=True)
        p_values = sorted({float(row["p_value"] or 0) for row in rows.values()})
        between = [(a + b) / 2 for a, b in pairwise(p_values)]
        assert len(between) >= 3
        for rate in between:
            field.fill(str(rate))
            digit_gate().with_false_alarm_rate(rate)  # which it takes
            expected = {
                name: "flagged" if float(row["p_value"] or 0) <= rate else "passed"
                for name, row in rows.items()
            }
            assert decisions(page) == expected
            flagged = list(expected.values()).count("flagged")
            expect(page.locator(".verdict b")).to_have_text(f"{flagged} of {len(rows)} flagged")
        slider.focus()
        page.keyboard.press("Home")
        lowest = float(field.input_value())
        digit_gate().with_false_alarm_rate(lowest)
        assert lowest == served.get("/gates").json()["gates"][0]["rates"]["choices"][0]
        field.fill("0.0001")
        expect(page.locator("#rate .warn")).to_contain_text("held-out images; this gate has")
        page.get_by_role("button", name="the gate's own, 0.05").click()
        assert field.input_value() == "0.05"


def test_sorting_and_taking_away(
    browser: Browser,
    served: Running,
    images: dict[str, bytes],
    rows: dict[str, ScoreRow],
    tmp_path: Path,
) -> None:
    with opened(browser, served) as page:
        give(page, images)
        suspicious = list(cards(page, len(images)))
        p_values = [float(rows[name]["p_value"] or 0) for name in suspicious]
        assert p_values == sorted(p_values)
        page.select_option("#sort", "name")
        assert set(list(cards(page, len(images)))[:3]) == {"<b>.png", "=1+1.png", "a,b.png"}
        page.select_option("#sort", "confidence")
        shown = [float(rows[name]["confidence"] or 0) for name in cards(page, len(images))]
        assert shown == sorted(shown)
        page.select_option("#sort", "suspicious")
        with page.expect_download() as download:
            page.click("#csv")
        download.value.save_as(tmp_path / "goen.csv")
        lines = (tmp_path / "goen.csv").read_text().splitlines()
        columns = list(next(iter(rows.values())))
        assert lines[0] == csv_line(columns).strip()
        assert len(lines) == len(rows) + 1
        for line, name in zip(lines[1:], suspicious, strict=True):
            expected = csv_line([name, rows[name]["label"]]).strip()
            assert line.startswith(expected)
            decision = "True" if rows[name]["is_ood"] else "False"
            cells = line.removeprefix(expected).split(",")[1:]
            assert cells[3] == decision
            assert float(cells[2]) == pytest.approx(rows[name]["p_value"], abs=0.01)
        assert [r["p_value"] for r in sort_rows(rows.values(), "p_value")] == p_values


def test_keyboard_and_closer_look(
    browser: Browser, served: Running, images: dict[str, bytes]
) -> None:
    with opened(browser, served) as page:
        give(page, images)
        order = list(cards(page, len(images)))
        page.locator(".card").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        dialog = page.locator("dialog")
        expect(dialog.locator("figcaption").first).to_have_text(order[1])
        expect(dialog.locator("figcaption").last).to_contain_text("32×32 pixels")
        expect(dialog).to_contain_text("the false-alarm rate 0.05")
        page.keyboard.press("ArrowRight")
        expect(dialog.locator("figcaption").first).to_have_text(order[2])
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(page.locator(".card").nth(2)).to_be_focused()
        page.keyboard.press("Delete")
        assert list(cards(page, len(images) - 1)) == [*order[:2], *order[3:]]
        expect(page.locator(".card").nth(2)).to_be_focused()
        page.click("#clear")
        expect(page.locator("#cards li")).to_have_count(0)
        expect(page.locator("#choose")).to_be_focused()


def test_pasted_chosen_and_taken_images(
    browser: Browser, served: Running, images: dict[str, bytes]
) -> None:
    with opened(browser, served) as page:
        give(page, {"d.png": images["d.png"]}, "paste")
        assert list(cards(page, 1)) == ["d.png"]
        file = {"name": "e.png", "mimeType": "image/png", "buffer": images["e.png"]}
        page.set_input_files("#files", [file])
        assert set(cards(page, 2)) == {"d.png", "e.png"}
        page.click("#camera")
        page.get_by_role("button", name="Take image").click()
        assert "camera 3.png" in cards(page, 3)
        expect(page.locator("dialog")).to_have_count(0)


def test_another_gate_scores_again(
    browser: Browser, served: Running, images: dict[str, bytes]
) -> None:
    with opened(browser, served) as page:
        give(page, images)
        cards(page, len(images))
        page.select_option("#gate", "strict")
        cards(page, len(images))
        assert page.get_by_label("False-alarm rate as a number").input_value() == "0.02"


def test_the_monitor_has_a_tab(browser: Browser, served: Running, images: dict[str, bytes]) -> None:
    for _ in range(2):  # a point of the charts each
        for data in images.values():
            assert served.post("/score", data).status_code == 200
        assert served.get("/monitor/digits").status_code == 200
    with opened(browser, served, 390) as page:
        expect(page.locator("#choose")).to_be_visible()
        page.locator("#tab-images").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#tab-monitor")).to_be_focused()
        expect(page.locator("#sentence")).not_to_have_text("")
        expect(page.locator("#numbers")).to_contain_text("alarm at 4.6")
        expect(page.locator(".chart h2").first).to_have_text("Log e-value of each stream")
        expect(page.locator(".chart polyline.s0").first).to_be_visible()
        expect(page.locator("#guarantee")).to_contain_text("at most 0.01")


def test_an_alarm_names_what_has_moved(browser: Browser) -> None:
    with running() as served:
        for image in noise(40, 0, stream=0).read():
            assert served.post("/score", encoded(image, "PNG")).status_code == 200
        with opened(browser, served) as page:
            page.locator("#tab-monitor").click()
            expect(page.locator("#sentence")).to_contain_text("The images have changed since")
            moved = page.locator("#moved")
            expect(moved).to_contain_text("Higher values: score, early, late. Sharper, or noisier:")
            expect(moved).to_contain_text("Lower values: entropy.")


def test_a_token_is_asked_for(browser: Browser) -> None:
    token = "a token that is long enough"
    settings = ServeSettings(token=token, limits=Limits(body=3000))
    with running(settings) as served:
        context = browser.new_context()
        page = context.new_page()
        page.goto(served.url)
        page.get_by_label("This service asks for its token.").fill("another token")
        page.keyboard.press("Enter")
        expect(page.locator("#problem")).to_contain_text("Send the service's token")
        page.get_by_label("This service asks for its token.").fill(token)
        page.keyboard.press("Enter")
        give(page, {"small.png": encoded(noise(1, 0, stream=0).read()[0], "JPEG")})
        assert "flagged" in cards(page, 1)["small.png"]
        give(page, {"large.png": b"x" * 3001})
        expect(page.locator("#cards .note")).to_have_text(
            "Larger than 0 MB, the most that is read."
        )
        context.close()
