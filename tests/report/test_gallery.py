"""Galleries: what the script is given, and what it makes of it in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from goen.gate.rates import Rates
from goen.report.gallery import Card, Gallery, Neighbour, TrainingImage, neighbour_numbers
from tests.report.browser import CHROMIUM, chromium, look_at
from tests.report.scored import HOSTILE, Scored, scored

pytestmark = pytest.mark.xdist_group("report")
in_browser = pytest.mark.skipif(
    CHROMIUM is None,
    reason="NO CHROMIUM HERE: the gallery was not opened in a browser. Debian: apt-get install "
    "chromium",
)
SCORED = "#scored-images"  # beside groups of flagged images
NEAR = ((Neighbour(7, 1, 0.25), Neighbour(3, 0, 0.5)), (Neighbour(7, 1, 0.125),))
CARD = Card("a.png", "data:,", 1, 0.75, 0.1, "data:,t", 0, (0.2, 0.1, 1.0), NEAR, "a note")


def test_numbers_reach_the_script_exactly() -> None:
    p = [k / 121 for k in range(1, 122)]
    cards = [Card("a", "", 0, 1 / 3, value) for value in p]
    gallery = Gallery("w", cards, ("a",), rates=Rates(0.1, 120, dict.fromkeys(p, 2)))
    data = json.loads(json.dumps(gallery.to_json()))
    assert [card["p_value"] for card in data["cards"]] == p
    assert data["rates"]["counts"] == [[value, 2] for value in p]
    assert data["cards"][0]["confidence"] == 1 / 3


def test_the_script_gets_everything_of_a_tile() -> None:
    gallery = Gallery(
        "w", [CARD], ("a", "b"), ("one", "two", "entropy"), ("one", "two"),
        training={7: TrainingImage("seven.png", "data:,7")},
    )  # fmt: skip
    data = json.loads(json.dumps(gallery.to_json()))
    assert data["cards"] == [
        {
            "name": "a.png",
            "seen": "data:,",
            "label": 1,
            "confidence": 0.75,
            "p_value": 0.1,
            "thumbnail": "data:,t",
            "truth": 0,
            "cue_p_values": [0.2, 0.1, 1.0],
            "nearest": [[[7, 1, 0.25], [3, 0, 0.5]], [[7, 1, 0.125]]],
            "note": "a note",
        }
    ]
    assert data["training"] == {"7": ["seven.png", "data:,7"]}
    assert data["rates"] is None


def test_neighbours_are_named_once() -> None:
    assert neighbour_numbers([CARD, CARD]) == [3, 7]


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    return scored(tmp_path_factory.mktemp("scored"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def tab(browser: Browser, page: Scored) -> Iterator[Page]:
    """The page, opened; a message on its console fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    tab = context.new_page()
    messages: list[str] = []

    def record(message: ConsoleMessage) -> None:
        messages.append(message.text)

    tab.on("console", record)
    tab.on("pageerror", lambda error: messages.append(str(error)))
    tab.goto(page.page.as_uri())
    yield tab
    context.close()
    assert messages == []


def shown(tab: Page) -> dict[str, bool]:
    """The images that are drawn, in order, and whether each is flagged."""
    found: list[list[object]] = tab.eval_on_selector_all(
        f"{SCORED} .cards li",
        """items => items.map(item => [
             item.querySelector(".name").title,
             item.classList.contains("flagged"),
             item.querySelector(".decision").textContent])""",
    )
    for _, flagged, text in found:
        assert text == ("flagged" if flagged else "passed")
    return {str(name): bool(flagged) for name, flagged, _ in found}


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_renders_whole_and_alone(
    page: Scored, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    look = look_at(browser, page.page, scheme)
    assert look.console == []
    for found in look.findings:
        assert found["requests"] == []
        assert found["overflow"] == 0
        assert found["beyond"] == []
        assert len(found["images"]) >= 60 * 5  # a thumbnail, what was seen, three neighbours
        assert all(natural > 0 for natural, _ in found["images"])
    dark = look.findings[0]["colour"] != ["rgb(26, 26, 26)", "rgb(255, 255, 255)"]
    assert dark == (scheme == "dark")


@in_browser
def test_the_page_decides_as_the_gate_does_at_every_rate(page: Scored, tab: Page) -> None:
    tab.get_by_role("button", name="all 150").click()
    size = len(page.gate.held_out) + 1
    typed = ["0.029", "0.1", "0.29", "0.57", *(repr(k / size) for k in (1, 6, 7, 60, 120))]
    typed += [repr(float(np.nextafter(k / size, end))) for k in (6, 7) for end in (0, 1)]
    field = tab.get_by_label("False-alarm rate as a number")
    slider = tab.get_by_role("slider", name="False-alarm rate")
    positions = int(slider.get_attribute("max") or 0)
    rates = []
    for text in typed:
        field.fill(text)
        rates.append(float(text))
        check_decisions(page, tab, rates[-1])
        below = [rate for rate in Rates(0.05, size - 1, {}).choices() if rate <= rates[-1]]
        assert slider.input_value() == str(max(len(below) - 1, 0))
    for position in range(0, positions + 1, 4):
        slider.fill(str(position))
        assert slider.input_value() == str(position)
        rates.append(float(field.input_value()))
        assert slider.get_attribute("aria-valuetext") == field.input_value()
        check_decisions(page, tab, rates[-1])
    tab.get_by_role("button", name="the gate's own, 0.05").click()
    check_decisions(page, tab, 0.05)
    assert len(set(rates)) > 15


def check_decisions(page: Scored, tab: Page, rate: float) -> None:
    gate = page.gate.with_false_alarm_rate(rate)
    expected = gate.predict(page.images).is_ood
    assert shown(tab) == dict(zip(map(str, page.files), expected.tolist(), strict=True))
    flagged = int(expected.sum())
    expect(tab.locator(".verdict b")).to_have_text(f"{flagged} of 150 flagged")


@in_browser
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.001", "A rate of 0.001 needs 999 held-out images; this gate has 120."),
        ("0", "strictly between 0 and 1"),
        ("1", "strictly between 0 and 1"),
        ("much", "strictly between 0 and 1"),
        ("", "strictly between 0 and 1"),
    ],
)
def test_a_rate_that_a_gate_refuses_changes_nothing(tab: Page, text: str, message: str) -> None:
    before = shown(tab)
    tab.get_by_label("False-alarm rate as a number").fill(text)
    expect(tab.get_by_role("alert")).to_contain_text(message)
    assert shown(tab) == before
    tab.get_by_label("False-alarm rate as a number").fill("0.05")
    expect(tab.locator(".rate .warn")).to_be_hidden()


@in_browser
def test_pictures_are_drawn_in_portions(tab: Page) -> None:
    assert len(shown(tab)) == 60
    expect(tab.get_by_text("60 of 150 images")).to_be_visible()
    tab.get_by_role("button", name="60 more").click()
    assert len(shown(tab)) == 120
    expect(tab.locator(f"{SCORED} .card").nth(60)).to_be_focused()
    tab.get_by_role("button", name="all 150").click()
    assert len(shown(tab)) == 150
    expect(tab.locator(f"{SCORED} .more button")).to_have_count(0)


@in_browser
def test_filters_show_what_they_name(page: Scored, tab: Page) -> None:
    prediction = page.gate.predict(page.images)
    names = list(map(str, page.files))

    def check(wanted: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> None:
        expected = {name for name, want in zip(names, wanted, strict=True) if want}
        expect(
            tab.locator(SCORED).get_by_text(f"{len(expected)} images", exact=False).last
        ).to_be_visible()
        assert {*shown(tab)} <= expected
        assert len(shown(tab)) == min(len(expected), 60)

    tab.locator(SCORED).get_by_label("any decision").select_option("flagged")
    check(prediction.is_ood)
    # Another rate filters again.
    tab.get_by_label("False-alarm rate as a number").fill("0.2")
    check(prediction.p_value <= 0.2)
    tab.locator(SCORED).get_by_label("any predicted class").select_option("3")
    check((prediction.p_value <= 0.2) & (prediction.label == 3))
    tab.locator(SCORED).get_by_label("any decision").select_option("passed")
    check((prediction.p_value > 0.2) & (prediction.label == 3))
    tab.locator(SCORED).get_by_label("any decision").select_option("")
    tab.locator(SCORED).get_by_label("any predicted class").select_option("")
    cues = np.stack(list(prediction.cue_p_values.values()), 1)
    tab.locator(SCORED).get_by_label("any deciding cue").select_option("1")
    check(cues[:, 1] == cues.min(1))
    tab.locator(SCORED).get_by_label("any deciding cue").select_option("")
    tab.locator(SCORED).get_by_label("Search by name or class").fill("IMAGE 01")
    check(np.array(["image 01" in name for name in names]))


@in_browser
def test_hostile_names_are_shown_as_they_are(tab: Page) -> None:
    for name in HOSTILE:
        tab.locator(SCORED).get_by_label("Search by name or class").fill(name)
        expect(tab.locator(f"{SCORED} .card .name")).to_have_text([name])
        tab.locator(f"{SCORED} .card").click()
        expect(tab.get_by_role("dialog").locator("h3")).to_contain_text(name)
        tab.keyboard.press("Escape")
    assert tab.locator(".gallery img[src=x], .gallery svg").count() == 0


@in_browser
def test_a_picture_is_looked_at_with_the_keyboard(page: Scored, tab: Page) -> None:
    cards = tab.locator(f"{SCORED} .card")
    names = list(shown(tab))
    cards.first.focus()
    tab.keyboard.press("ArrowRight")
    expect(cards.nth(1)).to_be_focused()
    tab.keyboard.press("ArrowDown")
    expect(cards.nth(6)).to_be_focused()  # five in a row
    tab.keyboard.press("ArrowUp")
    tab.keyboard.press("ArrowLeft")
    expect(cards.first).to_be_focused()
    tab.keyboard.press("Enter")
    dialog = tab.get_by_role("dialog")
    expect(dialog.locator("h3")).to_have_text(names[0])
    tab.keyboard.press("ArrowRight")
    expect(dialog.locator("h3")).to_have_text(names[1])
    dialog.get_by_role("button", name="Next image").click()
    expect(dialog.locator("h3")).to_have_text(names[2])
    tab.keyboard.press("ArrowLeft")
    expect(dialog.locator("h3")).to_have_text(names[1])
    row = list(map(str, page.files)).index(names[1])
    prediction = page.gate.predict(page.images)
    text = dialog.inner_text()
    assert prediction.classes[prediction.label[row]] in text
    for cue, p in prediction.cue_p_values.items():
        assert cue in text
        assert f"p = {p[row]:.2g}" in text
    outputs = page.gate.outputs(page.images)
    for near in page.gate.detector.nearest(outputs, 3).values():
        for number in near.numbers[row].tolist():
            assert f"#{number}" in text
    expect(dialog.locator(".neighbours img")).to_have_count(6)
    tab.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(cards.nth(1)).to_be_focused()


@in_browser
def test_without_scripts_the_page_says_why_it_is_empty(browser: Browser, page: Scored) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        tab = context.new_page()
        tab.goto(page.page.as_uri())
        expect(tab.locator(SCORED).get_by_text("allow it to run to see them")).to_be_visible()
    finally:
        context.close()


@in_browser
@pytest.mark.parametrize(
    ("layers", "shown"), [(("one", "two"), "two"), (("0", "1.norm"), "layer 1.norm")]
)
def test_a_wall_without_rates_shows_no_decision(
    browser: Browser, layers: tuple[str, str], shown: str, tmp_path: Path
) -> None:
    from goen.report.blocks import Page as ReportPage
    from goen.report.blocks import Section
    from goen.report.page import write_single_page

    small = Gallery("small", [CARD], ("a", "b"), (*layers, "entropy"), layers, small=True)
    write_single_page(ReportPage("t", [], [Section("s", [small])]), tmp_path / "page.html")
    context = browser.new_context()
    try:
        tab = context.new_page()
        tab.goto((tmp_path / "page.html").as_uri())
        lines = tab.locator(".card").inner_text().splitlines()
        assert [line for line in lines if line] == [
            "b 75 %, labelled a", f"p = 0.1, {shown}", "#7", "b", "a note", "a.png",
        ]  # fmt: skip
        assert tab.locator(".decision, .rate, .filters").count() == 0
        tab.locator(".card").click()
        expect(tab.get_by_text(f"Nearest training images in {shown}")).to_be_visible()
    finally:
        context.close()
