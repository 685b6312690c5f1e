"""Where the numbers come from: versions, hardware, seeds, hashes, the command."""

import json
import shlex
from typing import Any

from goen.data.protocol import EXTRA_SETS
from goen.report.blocks import Details, Facts, Section, Words
from goen.report.run_folder import RunFolder


def provenance(run: RunFolder) -> Section:
    """The last section of every page; what was not recorded says so."""
    facts = run.summary.get("facts", {})
    versions = run.manifest.get("versions") or run.summary.get("versions", {})
    hardware = facts.get("hardware") or run.summary.get("hardware", {})
    rows = [
        ("command, every choice spelt out", command(run)),
        ("training budget", ", ".join(dict.fromkeys(r.budget for r in run.results))),
        ("seeds", ", ".join(dict.fromkeys(str(r.seed) for r in run.results))),
        ("networks", ", ".join(dict.fromkeys(r.network for r in run.results))),
        ("versions", ", ".join(f"{k} {v}" for k, v in versions.items()) or "not recorded"),
        ("hardware", ", ".join(f"{k}: {v}" for k, v in hardware.items()) or "not recorded"),
    ]
    if run.manifest:
        rows.append(("gate, SHA-256 of its tensors", run.manifest["tensors_sha256"]))
    rows += [(f"{name}, SHA-256", digest) for name, digest in run.hashes().items()]
    recipe = facts.get("recipe") or run.summary.get("recipe")
    blocks: list[Any] = [
        Words(
            "Every number in the tables of results stands in results.jsonl beside this page, or is "
            "a mean of such numbers. The tables are in tables/ as Markdown, LaTeX and CSV, the "
            "figures in figures/ as SVG, PNG and PDF."
        ),
        Facts(("what", "value"), tuple(rows)),
        _splits(run),
    ]
    if recipe:
        blocks.append(Details("The whole recipe", json.dumps(recipe, indent=2)))
    return Section("Where it comes from", blocks)


def _splits(run: RunFolder) -> Facts:
    """Every split that fitted, calibrated or chose something, with the hash of its content."""
    roles = run.summary.get("facts", {}).get("splits")
    if roles:
        rows = [
            (role, f"{split['images']:,}", split["name"], split["fingerprint"])
            for role, split in roles.items()
        ]
        return Facts(("role", "images", "set", "content"), tuple(rows))
    used: dict[str, set[str]] = {}
    for r in run.results:
        for role, splits in (("fitted", r.fitted_on), ("calibrated", r.calibrated_on)):
            for split in splits:
                used.setdefault(split, set()).add(role)
    rows_of = [
        (" and ".join(sorted(roles_of)), *split.rpartition(":")[::2])
        for split, roles_of in used.items()
    ]
    return Facts(("role", "set", "content"), tuple(rows_of))


def command(run: RunFolder) -> str:
    """The command that asks for the same again."""
    words = ["goen", run.study, "--data", str(run.summary.get("data", ""))]
    extra = [name for name in EXTRA_SETS if name in run.sets]
    if extra:
        words += ["--extra", *extra]
    choices = dict(run.summary.get("config", {}))
    if "seeds" in run.summary:
        choices.pop("seed", None)
        choices["seeds"] = run.summary["seeds"]
    for name, value in choices.items():
        values = list(value) if isinstance(value, list | tuple) else [value]
        if values and values != [""] and value is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)
