"""Keep a finished study's numbers: python recipes/keep.py RUN NAME

Copies results.jsonl and run.json (versions, hardware, configuration) to results/cifar10/NAME.jsonl
and NAME.json. The scores of single images stay in the run's folder.
"""

import json
from pathlib import Path

import tyro

RESULTS = Path(__file__).parents[1] / "results" / "cifar10"


def keep(run: tyro.conf.Positional[Path], name: tyro.conf.Positional[str]) -> None:
    """Copy.

    Args:
        run: the study's folder.
        name: of the copy.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    for source, end in (("results.jsonl", "jsonl"), ("run.json", "json")):
        text = (run / source).read_text(encoding="utf-8")
        for line in text.splitlines() if end == "jsonl" else [text]:
            json.loads(line)  # an error here if it is damaged
        (RESULTS / f"{name}.{end}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(keep)
