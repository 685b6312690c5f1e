"""The geometry of the variants' features."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from goen.errors import UsageError
from goen.report.pages.geometry import geometry_tables
from goen.report.summary import read_summary
from goen.studies import PRESETS, AblateConfig, geometry
from goen.studies.geometry import NETWORK_VARIANTS
from tests.tiny import FAST, tiny_protocol


def test_measures_are_those_of_the_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]
    protocol = tiny_protocol()
    config = AblateConfig(("no_center_loss",), preset="fast")
    results = geometry(config, protocol, tmp_path / "g")
    assert {r.method for r in results} == {"default", "no_center_loss"}  # default is always there
    assert {r.dataset for r in results} == {"train", "test"}
    assert all(np.isfinite(r.value) for r in results)
    # Only z is what the classifier's weights can be compared with.
    assert {r.metric for r in results if r.metric.endswith("/nc3")} == {"z/raw/nc3", "z/unit/nc3"}
    found = {(r.method, r.dataset, r.metric): r.value for r in results}

    made = [
        path
        for path in (tmp_path / "stages").glob("outputs-*")
        if json.loads((path / "inputs.json").read_text())["images"] == protocol.test.fingerprint
    ]
    key = next(r.network for r in results if r.method == "default")
    path = next(p for p in made if key in (p / "inputs.json").read_text())
    z = load_file(path / "outputs.safetensors")["feature.z"].astype(np.float64)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    for kind, rows in {"raw": z, "unit": unit}.items():
        spectrum = np.linalg.eigvalsh(np.cov(rows.T, bias=True))
        share = found["default", "test", f"z/{kind}/total_top_share"]
        assert np.isclose(share, spectrum[-1] / spectrum.sum())
    lines = (tmp_path / "g" / "training.jsonl").read_text().splitlines()
    story = [json.loads(line) for line in lines]
    assert [row["variant"] for row in story] == ["default", "no_center_loss"]

    tables = geometry_tables(results, read_summary(tmp_path / "g"))
    assert [table.name for table in tables] == [
        f"{feature}_{dataset}"
        for dataset in ("train", "test")
        for feature in ("layer2", "layer4", "z")
    ]


def test_only_variants_with_a_network_of_their_own_are_measured() -> None:
    assert "no_svhn" not in NETWORK_VARIANTS
    assert len(NETWORK_VARIANTS) == 6


@pytest.mark.parametrize("name", ["no_centre_loss", "no_svhn"])
def test_a_variant_without_a_network_of_its_own_is_an_error_and_an_earlier_run_is_kept(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text("of an earlier run")
    with pytest.raises(UsageError, match="Unknown variant with a network of its own"):
        geometry(AblateConfig(variants=(name,)), tiny_protocol(), tmp_path)
    assert (tmp_path / "run.json").read_text() == "of an earlier run"


def test_the_folder_may_be_a_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Unknown preset 'none'"):  # after the folder was made
        geometry(AblateConfig(preset="none"), tiny_protocol(), str(tmp_path / "out"))
    assert (tmp_path / "out").is_dir()
