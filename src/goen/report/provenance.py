"""The last section of every page: versions, hardware, seeds, hashes, the command."""

import json
import shlex

from goen.data.protocol import EXTRA_SETS, PROTOCOLS
from goen.report.blocks import Details, FactTable, PageBlock, Section
from goen.report.run_folder import RunFolder, file_hashes
from goen.report.texts import named, text_of


def provenance(run: RunFolder) -> Section:
    """Where the numbers come from; what was not recorded is named."""
    summary = run.summary
    rows = [
        ("command with every option", command(run)),
        ("training budget", ", ".join(dict.fromkeys(r.budget for r in run.results))),
        ("seeds", ", ".join(dict.fromkeys(str(r.seed) for r in run.results))),
        ("networks", ", ".join(dict.fromkeys(r.network for r in run.results))),
        ("versions", named(summary.versions) or "not recorded"),
        ("hardware", named(summary.hardware, ": ") or "not recorded"),
    ]
    if run.gate is not None:
        rows.append(("gate, SHA-256 of its tensors", run.gate.text("tensors_sha256")))
    rows += file_hashes(run.path, ("results.jsonl", "scores.safetensors", "map.safetensors"))
    text, facts = text_of("provenance.html", "files"), FactTable(("what", "value"), rows)
    blocks: list[PageBlock] = [text, facts, _splits(run)]
    if summary.recipe:
        blocks.append(Details("All settings", json.dumps(summary.recipe, indent=2)))
    return Section("Provenance", blocks)


def _splits(run: RunFolder) -> FactTable:
    """Every split that fitted, calibrated or chose something, with the hash of its content."""
    if run.summary.splits:
        splits = run.summary.splits.items()
        rows = [(role, f"{s.images:,}", s.name, s.fingerprint) for role, s in splits]
        return FactTable(("role", "images", "set", "content"), rows)
    used: dict[str, set[str]] = {}
    for r in run.results:
        for role, identities in (("fitted", r.fitted_on), ("calibrated", r.calibrated_on)):
            for identity in identities:
                used.setdefault(identity, set()).add(role)
    return FactTable(
        ("role", "set", "content"),
        [(" and ".join(sorted(roles)), *name.rpartition(":")[::2]) for name, roles in used.items()],
    )


def command(run: RunFolder) -> str:
    """The command that repeats the study."""
    words = ["goen", run.summary.study]
    given = any(r.budget == "given" for r in run.results)  # its model and sets are not recorded
    named = run.summary.data in PROTOCOLS  # the folders of others are not recorded
    words += ["..."] if given else ["--data", run.summary.data if named else "..."]
    extra = [name for name in EXTRA_SETS if named and name in run.sets]
    if extra:
        words += ["--extra", *extra]
    options = dict(run.summary.config)
    if run.summary.seeds:
        options.pop("seed", None)
        options["seeds"] = run.summary.seeds
    for name, value in options.items():
        values = list(value) if isinstance(value, list | tuple) else [value]
        if isinstance(value, bool):
            words += [f"--{name.replace('_', '-')}"] if value else []
        elif values and values != [""] and value is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)
