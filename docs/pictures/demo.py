"""demo.png, the beginning of the demo's report: python docs/pictures/demo.py runs/digits

Needs Chromium and the packages of the tests (``pip install -e '.[test-all]'``).
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).with_name("demo.png")
WIDTH, HEIGHT = 1080, 1340


def main(run: Path) -> None:
    """Take a picture of the page of a run."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto((run / "report.html").resolve().as_uri())
        content = page.screenshot()
        browser.close()
    with Image.open(io.BytesIO(content)) as picture:
        picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(OUT, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
