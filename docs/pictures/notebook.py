"""notebook.png, a prediction as a notebook shows it: python docs/pictures/notebook.py runs/digits

Needs Chromium and the packages of the tests (``pip install -e '.[test-all]'``).
"""

import io
import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

import goen

OUT = Path(__file__).with_name("notebook.png")


def main(run: Path) -> None:
    """Take a picture of a prediction of the gate of ``goen demo`` or ``goen run``."""
    p = goen.data.protocol("digits")
    unlike = p.evaluation["photographs"].images
    images = np.concatenate([p.test.read(range(30)), unlike.read(range(0, 300, 100))])
    table = goen.load(run).predict(images).show(images, most=6)._repr_html_()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 900, "height": 100}, device_scale_factor=2)
        page.set_content(f"<body style='font-family:sans-serif;margin:12px'>{table}</body>")
        content = page.screenshot(full_page=True)
        browser.close()
    with Image.open(io.BytesIO(content)) as picture:
        picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=128).save(OUT, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
