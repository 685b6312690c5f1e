"""A page in headless Chromium, looked at from outside: nothing of the page is changed for it."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTHS = (1200, 390)

# The page stands in frames as wide as a desktop and a phone: its media queries see the frame.
# What a script in the frame may not do by the page's own policy, this one outside may.
_HARNESS = """<!doctype html><meta charset="utf-8"><body>{frames}<pre id="findings"></pre><script>
addEventListener("load", async () => {{
  const findings = [];
  for (const frame of document.querySelectorAll("iframe")) {{
    const page = frame.contentDocument;
    await Promise.all([...page.images].map(image => image.decode().catch(() => null)));
    const wide = [...page.querySelectorAll("body *")].filter(e => !e.closest(".scroll"));
    const width = page.documentElement.clientWidth;
    findings.push({{
      width: width,
      overflow: page.documentElement.scrollWidth - width,
      beyond: wide.filter(e => e.getBoundingClientRect().right > width + 1).map(e => e.outerHTML),
      pictures: [...page.images].map(i => [i.naturalWidth, i.getBoundingClientRect().width]),
      tables: page.querySelectorAll("table").length,
      title: page.title,
      requests: frame.contentWindow.performance.getEntriesByType("resource").map(e => e.name)
        .filter(name => !name.startsWith("data:")),
      colour: ["color", "backgroundColor"].map(kind => getComputedStyle(page.body)[kind]),
    }});
  }}
  document.getElementById("findings").textContent = JSON.stringify(findings);
}});
</script>"""


@dataclass(frozen=True)
class Look:
    """What was found at each width, and what the browser's console said."""

    findings: list[dict[str, Any]]
    console: list[str]


def look_at(page: Path, work: Path) -> Look:
    """Open the page at both widths, without any network."""
    source = html.escape(page.read_text(encoding="utf-8"), quote=True)
    frames = "".join(
        f'<iframe style="border:0;width:{w}px;height:900px" srcdoc="{source}"></iframe>'
        for w in WIDTHS
    )
    harness = work / "harness.html"
    harness.write_text(_HARNESS.format(frames=frames), encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run", "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr", "--log-level=0",
        "--window-size=1300,1000", "--virtual-time-budget=20000", "--timeout=60000",
        "--dump-dom", harness.as_uri(),
    ]  # fmt: skip
    # On a busy machine the browser may give up before the script has looked; then it looks again,
    # with nothing left of the time before.
    for attempt in range(6):
        fresh = [*command, f"--user-data-dir={work / f'profile {attempt}'}"]
        done = subprocess.run(fresh, capture_output=True, text=True, timeout=180)
        written = re.search(r'<pre id="findings">(.+?)</pre>', done.stdout, re.DOTALL)
        if written is not None:
            break
    assert written is not None, f"the page was not looked at: {done.stderr[-2000:]}"
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Look(json.loads(html.unescape(written.group(1))), console)
