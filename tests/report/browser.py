"""Open a page in headless Chromium and measure it there, without any network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if find_spec("playwright") is None:
    CHROMIUM = None
WIDTHS = (1200, 390)  # a desktop and a phone
SECONDS = 180  # a limit for a machine under heavy load; an idle one needs about one second

# Chromium runs this in the page after the load event. The page's own policy does not apply to it.
_MEASURE = """async () => {
  await document.fonts.ready;
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  const outside = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll"));
  const width = document.documentElement.clientWidth;
  const style = getComputedStyle(document.body);
  return {
    width: width,
    overflow: document.documentElement.scrollWidth - width,
    beyond: outside.filter(e => e.getBoundingClientRect().right > width + 1).map(e => e.outerHTML),
    images: [...document.images].map(i => [i.naturalWidth, i.getBoundingClientRect().width]),
    tables: document.querySelectorAll("table").length,
    title: document.title,
    colour: [style.color, style.backgroundColor],
  };
}"""


@dataclass(frozen=True)
class Look:
    """What was measured at each width, and the messages on the browser's console.

    Each finding also lists the page's ``requests``: every address except its own and ``data:``.
    """

    findings: list[dict[str, Any]]
    console: list[str]


@contextmanager
def chromium(reachable: str = "", *options: str) -> Iterator[Browser]:
    """A running Chromium that reaches no host but this; Playwright waits until it is ready."""
    rules = "MAP * ~NOTFOUND" + (f" , EXCLUDE {reachable}" if reachable else "")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--disable-gpu", f"--host-resolver-rules={rules}", *options],
            timeout=SECONDS * 1000,
        )
        try:
            yield browser
        finally:
            browser.close()


def look_at(browser: Browser, file: Path, scheme: Literal["light", "dark"] = "light") -> Look:
    """Measure the page once at each width; ``scheme`` is what the system of the reader prefers."""
    findings, console = [], []
    for width in WIDTHS:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, service_workers="block"
        )
        try:
            page = context.new_page()
            messages = _record_console(page)
            requests = _record_requests(page, file.as_uri())
            context.route("**/*", _stay_on_this_machine)
            page.goto(file.as_uri(), wait_until="load", timeout=SECONDS * 1000)
            found = page.evaluate(_MEASURE)
        finally:
            context.close()
        # Read after closing: by then every event of the page has been delivered.
        findings.append({**found, "requests": requests})
        console.extend(messages)
    return Look(findings, console)


def _record_console(page: Page) -> list[str]:
    messages: list[str] = []
    page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: messages.append(f"uncaught: {error}"))
    return messages


def _record_requests(page: Page, own: str) -> list[str]:
    requests: list[str] = []

    def record(url: str) -> None:
        if url != own and not url.startswith("data:"):
            requests.append(url)

    page.on("request", lambda request: record(request.url))
    # These do not pass through routes; no name resolves, so they cannot connect.
    page.on("websocket", lambda socket: record(socket.url))
    return requests


def _stay_on_this_machine(route: Route) -> None:
    if route.request.url.startswith(("file:", "data:")):
        route.continue_()
    else:
        route.abort()
