"""Classes that join a gate whose classifier was not trained on them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import goen
from goen.errors import ArtifactError, FitError, GoenWarning, LeakError, UsageError
from goen.gate import Gate
from tests.gate.storage.test_saving import copied, forge_field, forge_tensor, put
from tests.own_model import LAYERS, digits, ood, preprocess, trained

NAMES = ["7", "8", "9"]


def fit(detector: str, **changes: Any) -> Gate:
    p = digits()
    return Gate.fit(
        *(trained(), p.train, p.validation),
        layers=LAYERS,
        preprocess=preprocess,
        detector=detector,
        **changes,
    )


@pytest.fixture(scope="module")
def gate() -> Gate:
    return fit("goen_m")


def unseen(part: int) -> tuple[Any, Any]:
    """A third of the digits that the classifier was not trained on, with their labels."""
    known = goen.data.load_set("digits")
    rows = np.flatnonzero(known.labels >= 7)[part::3]
    return known.read(rows), known.labels[rows]


def held_out() -> tuple[Any, Any]:
    """Of all ten digits."""
    p, (images, labels) = digits(), unseen(1)
    return (
        np.concatenate([p.validation.read(), images]),
        np.concatenate([p.validation.labels, labels]),
    )


def check(before: Gate, updated: Gate) -> None:
    images, labels = unseen(2)
    assert before.predict(images).is_ood.mean() > 0.5
    found = updated.predict(images)
    assert found.is_ood.mean() < 0.15
    assert found.new_class is not None
    assert np.array_equal(found.new_class, found.label >= 7)
    assert found.new_class.mean() > 0.7
    assert (found.label == labels).mean() > 0.5
    known = digits().test
    one, other = before.predict(known.read()), updated.predict(known.read())
    assert one.new_class is None
    kept = ~np.asarray(other.new_class)
    assert kept.mean() > 0.9
    # The classifier is not overruled, but by a new class.
    assert np.array_equal(one.label[kept], other.label[kept])
    assert np.allclose(one.confidence[kept], other.confidence[kept], atol=1e-6)


@pytest.mark.parametrize("detector", ["goen_m", "goen"])
def test_images_of_new_classes_are_known_after_the_update(detector: str, gate: Gate) -> None:
    before = gate if detector == "goen_m" else fit(detector)
    change = before.update(train=unseen(0), held_out=held_out(), new_classes=NAMES)
    updated = change.gate
    assert updated.classes == tuple("0123456789")
    assert before.classes == tuple("0123456")
    assert len(updated.predict(unseen(2)[0]).classes) == 10
    check(before, updated)
    assert change.before == {}
    assert str(change).splitlines()[0].strip() == "after"


def test_an_update_adds_the_same_as_a_fit_on_all(gate: Gate) -> None:
    # The bank of ten classes keeps fewer of each than that of seven would.
    updated = gate.update(train=unseen(0), held_out=held_out(), new_classes=NAMES).gate
    bank = updated.detector.bank_
    assert (bank.num_classes, bank.num_seen) == (10, len(digits().train) + len(unseen(0)[0]))
    later = updated.update(train=unseen(2), held_out=held_out()).gate
    assert later.num_known_classes == 7
    counts = later.network.means.counts.tolist()
    assert counts[7:] == [
        sum(int((unseen(part)[1] == label).sum()) for part in (0, 2)) for label in (7, 8, 9)
    ]
    assert updated.network.means.counts.tolist()[7:] < counts[7:]


def test_a_saved_gate_has_its_new_classes(gate: Gate, tmp_path: Path) -> None:
    updated = gate.update(train=unseen(0), held_out=held_out(), new_classes=NAMES).gate
    updated.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=trained(), preprocess=preprocess)
    images, _ = unseen(2)
    one, other = updated.predict(images), loaded.predict(images)
    assert np.array_equal(one.label, other.label)
    assert np.array_equal(one.score, other.score)
    assert np.array_equal(one.new_class, other.new_class)
    row = next(iter(other[:1].rows()))
    assert row["new_class"] is bool(other.new_class[0])
    assert other[0].new_class is row["new_class"]
    updated.export(tmp_path / "gate.onnx")  # compares the two on images
    assert "new_class" not in next(iter(gate.predict(images[:1]).rows()))


@pytest.fixture(scope="module")
def saved(gate: Gate, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gates") / "gate"
    gate.update(train=unseen(0), held_out=held_out(), new_classes=NAMES).gate.save(folder)
    return folder


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("count", 2, "new_classes.sums should be"),
        ("count", -3, "new_classes.count should be a whole number above 0"),
        ("count", 10**9, "new_classes cannot be"),
        ("feature", "later", "new_classes cannot be"),
        ("further", 1, "unknown fields: 'network.new_classes.further'"),
    ],
)
def test_a_forged_field_is_refused(
    saved: Path, tmp_path: Path, field: str, value: Any, message: str
) -> None:
    folder = copied(saved, tmp_path)
    forge_field(folder, ("network", "new_classes", field), value)
    with pytest.raises(ArtifactError, match=message):
        goen.load(folder, model=trained(), preprocess=preprocess)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sums", put(np.nan), "new_classes.sums should hold finite numbers"),
        ("counts", put(-1), "class means should be those of one image or more"),
        ("squares", None, "no tensor new_classes.squares"),
        ("further", put(1), "unknown names: new_classes.further"),
    ],
)
def test_a_forged_tensor_is_refused(
    saved: Path, tmp_path: Path, name: str, change: Any, message: str
) -> None:
    folder = copied(saved, tmp_path)
    forge_tensor(folder, f"new_classes.{name}", change)
    with pytest.raises(ArtifactError, match=message):
        goen.load(folder, model=trained(), preprocess=preprocess)


def test_folders_of_new_classes_are_numbered_after_the_known(gate: Gate, tmp_path: Path) -> None:
    from PIL import Image

    images, labels = unseen(0)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / {7: "seven", 8: "eight"}.get(int(label), "skipped")
        if folder.name != "skipped":
            folder.mkdir(exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{number}.png")
    sample = digits().validation.read()
    with pytest.warns(GoenWarning, match="No held-out image is of"):
        found = gate.update(
            train=tmp_path,
            held_out=(sample, digits().validation.labels),
            new_classes=["seven", "eight"],
        )
    counts = found.gate.network.means.counts.tolist()[7:]
    assert counts == [int((labels == 7).sum()), int((labels == 8).sum())]


def test_a_gate_of_features_has_new_classes_among_its_means() -> None:
    rng = np.random.default_rng(0)

    def rows(label: int, count: int) -> Any:
        features = rng.normal(0, 0.3, (count, 4))
        features[:, label] += 3
        return features

    train = np.concatenate([rows(0, 100), rows(1, 100)])
    held = np.concatenate([rows(0, 100), rows(1, 100)])
    gate = Gate.fit_outputs(train, np.repeat([0, 1], 100), held, classes=["cat", "dog"])
    new = gate.update(
        train=({"features": rows(2, 40)}, np.full(40, 2)),
        held_out={"features": np.concatenate([held, rows(2, 100)])},
        new_classes="bird",
    ).gate
    found = new.predict_outputs(rows(2, 50))
    assert gate.predict_outputs(rows(2, 50)).is_ood.all()
    assert set(found.class_names) == {"bird"}
    assert found.is_ood.mean() < 0.3
    assert found.new_class is None  # every label is that of the nearest mean

    logits = {"z": train, "logits": train[:, :2]}
    known = Gate.fit_outputs(logits, None, {"z": held, "logits": held[:, :2]})
    with pytest.raises(UsageError, match="fit a gate on the features alone"):
        known.update(
            train=({"z": held, "logits": held[:, :2]}, np.full(200, 2)),
            held_out=logits,
            new_classes=["bird"],
        )


def test_what_new_classes_need_is_said(gate: Gate) -> None:
    train = unseen(0)
    for given in ({"train": train}, {"held_out": held_out()}):
        with pytest.raises(UsageError, match="because they were flagged"):
            gate.update(**given, new_classes=NAMES)
    for names, message in (
        (["0", "1"], "got 0, 1"),
        (["x", "x"], "got x"),
        ([""], "an empty name"),
    ):
        with pytest.raises(UsageError, match=message):
            gate.update(train=train, held_out=held_out(), new_classes=names)
    with pytest.raises(FitError, match=r"No training image is of ten.*: 7 is 7"):
        gate.update(train=train, held_out=held_out(), new_classes=[*NAMES, "ten"])
    with pytest.raises(LeakError, match="pixel for pixel"):
        gate.update(train=train, held_out=train, new_classes=NAMES)
    with pytest.raises(UsageError, match=r"Labels lie in 0 \.\. 6"):
        gate.update(train=train, held_out=held_out())
    knn = fit("knn")
    with pytest.raises(UsageError, match="Train a classifier that knows the new classes"):
        knn.update(train=train, held_out=held_out(), new_classes=NAMES)


def test_ood_images_must_come_again_and_settings_stay() -> None:
    noise = {"noise": ood()["noise"]}
    gate = fit("goen_m", ood=noise).with_false_alarm_rate(0.1)
    with pytest.raises(UsageError, match="Missing: noise"):
        gate.update(train=unseen(0), held_out=held_out(), new_classes=NAMES)
    given = {"train": unseen(0), "held_out": held_out(), "ood": noise, "new_classes": NAMES}
    bounded = gate.with_error_rate(0.2)
    updated = bounded.update(**given).gate
    assert updated.error_rate == bounded.error_rate
    assert updated.false_alarm_rate == 0.1
    assert [*updated.detector.ood_cues_] == ["noise"]
