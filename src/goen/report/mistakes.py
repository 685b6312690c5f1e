"""The errors of a run's gate, image by image: ID images flagged, OOD images not flagged."""

import numpy as np
from scipy.special import softmax

from goen.data.images.data_urls import image_url
from goen.io.results import Mistakes, read_mistakes
from goen.report.blocks import PageBlock, Paragraph, Section
from goen.report.gallery import Card, Gallery
from goen.report.run_folder import RunFolder
from goen.report.texts import slug, text_of


def mistakes_section(run: RunFolder, classes: tuple[str, ...]) -> Section:
    """A gallery of errors for each set that has any.

    Args:
        run: of ``goen run``.
        classes: of its gate.
    """
    title = "Errors of the gate"
    path = run.path / "mistakes.safetensors"
    if not path.is_file():
        text = "mistakes.safetensors is missing: no images are shown. Run the same command again."
        return Section(title, [Paragraph(text, "warn")])
    blocks: list[PageBlock] = [text_of("run.html", "errors")]
    found = read_mistakes(path)
    for name in ("test", *run.sets):
        blocks += _of_set(run, name, found[name], classes)
    return Section(title, blocks)


def _of_set(
    run: RunFolder, name: str, mistakes: Mistakes, classes: tuple[str, ...]
) -> list[PageBlock]:
    flagged = run.scores[name]["is_ood"].astype(bool)
    number = int(flagged.sum() if name == "test" else (~flagged).sum())
    counts = {"number": number, "total": len(flagged), "shown": len(mistakes.rows)}
    heading = Paragraph(text_of("run.html", "errors_of", name=name, **counts), "lead")
    if not number:
        return [heading]
    cards = _cards(run, name, mistakes)
    return [heading, Gallery(f"errors-{slug(name)}", cards, classes, small=True)]


def _cards(run: RunFolder, name: str, mistakes: Mistakes) -> list[Card]:
    scores, rows = run.scores[name], mistakes.rows
    probabilities = softmax(scores["logits"][rows].astype(np.float64), axis=1)
    return [
        Card(
            name=f"{name}/#{row}",
            seen=image_url(mistakes.images[i]),
            label=int(scores["label"][row]),
            confidence=float(probabilities[i].max()),
            p_value=float(scores["p_value"][row]),
            truth=int(scores["truth"][row]) if "truth" in scores else None,
        )
        for i, row in enumerate(rows.tolist())
    ]
