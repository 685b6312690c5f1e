"""The function that engines map over batches; one test per engine that is installed."""

import io
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen import Scorer
from goen.errors import UsageError
from goen.gate import Gate
from goen.scoring.rows import score_columns
from tests.gate.test_gate import make_gate
from tests.image_sources import features_gate
from tests.own_model import LAYERS, digits, preprocess, trained

BROKEN = b"no picture"


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate()


def png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(content, "png")
    return content.getvalue()


def contents(count: int) -> list[bytes]:
    """Pictures of digits as contents of files; the fourth is broken."""
    found = [png(pixels) for pixels in digits().test.read(range(count))]
    return [BROKEN if i == 3 else content for i, content in enumerate(found)]


def check_scored(scored: dict[str, list], gate: Gate, count: int) -> None:
    """The columns ``id``, ``score``, ``label``, ``is_ood`` and ``error`` of ``contents``."""
    expected = gate.predict(digits().test.read(range(count)))
    order = np.argsort(scored["id"])
    assert sorted(scored["id"]) == list(range(count))
    assert "image" not in scored
    for i, place in enumerate(order):
        if i == 3:
            assert "not an image" in scored["error"][place]
            assert scored["is_ood"][place]
            missing = scored["score"][place]
            assert missing is None or np.isnan(missing)  # Spark has no NaN
        else:
            assert scored["error"][place] == ""
            # Batches of another size may be summed in another order.
            assert scored["score"][place] == pytest.approx(expected.score[i], rel=1e-5)
            assert scored["label"][place] == gate.classes[expected.label[i]]
            assert scored["is_ood"][place] == expected.is_ood[i]


def test_arrays_bytes_structs_and_pictures_are_scored_alike(gate: Gate) -> None:
    pixels = digits().test.read(range(10))
    files = [png(image) for image in pixels]
    structs = [{"bytes": content, "path": None} for content in files]
    pillow = [Image.open(io.BytesIO(content)) for content in files]
    scorer = Scorer(gate)
    expected = gate.predict(pixels)
    arrays = np.empty(10, dtype=object)
    arrays[:] = [*pixels]
    objects = np.array(files, dtype=object)
    for given in (pixels, arrays, files, objects, structs, np.array(structs), pillow):
        scored = scorer({"image": given, "name": np.array(list("abcdefghij"))})
        assert [*scored] == ["name", *score_columns(gate), "error"]
        assert np.array_equal(scored["score"], expected.score)
        assert np.array_equal(scored["p_value"], expected.p_value)
        assert np.array_equal(scored["is_ood"], expected.is_ood)
        assert scored["label"].tolist() == [gate.classes[label] for label in expected.label]
        assert scored["name"].tolist() == list("abcdefghij")
        assert set(scored["error"]) == {""}


def test_columns_of_lists_of_different_lengths_stay(gate: Gate) -> None:
    tags = [["cat"], ["dog", "small"], []]
    scored = Scorer(gate)({"tags": tags, "image": contents(3)})
    assert scored["tags"].tolist() == tags
    assert scored["error"].tolist() == [""] * 3


def test_bytes_keep_the_zeros_at_their_end(gate: Gate) -> None:
    black = io.BytesIO()
    Image.new("RGB", (32, 32)).save(black, "bmp")
    assert black.getvalue().endswith(b"\0")
    assert Scorer(gate)({"image": [black.getvalue()]})["error"].tolist() == [""]


def test_what_cannot_be_read_is_flagged_with_the_reason(gate: Gate) -> None:
    scored = Scorer(gate)({"image": [BROKEN, {"bytes": None}, contents(1)[0]]})
    assert scored["error"][0].startswith("image 0 of the batch is not an image")
    assert "NoneType" in scored["error"][1]
    assert scored["error"][2] == ""
    assert scored["is_ood"][:2].tolist() == [True, True]
    assert scored["label"][:2].tolist() == ["", ""]
    assert np.isnan(scored["p_value"]).tolist() == [True, True, False]


def test_the_types_of_the_columns_are_the_same_in_every_batch(gate: Gate) -> None:
    scorer = Scorer(gate)
    kinds = [
        {name: column.dtype.kind for name, column in scorer({"image": batch}).items()}
        for batch in ([BROKEN], contents(2), np.empty(0, dtype=object), [])
    ]
    assert kinds[0] == kinds[1] == kinds[2] == kinds[3]
    assert kinds[0]["is_ood"] == "b"
    assert kinds[0]["label"] == kinds[0]["error"] == "U"
    assert kinds[0]["score"] == "f"


def test_a_scorer_pickles_with_its_gate() -> None:
    p = digits()
    gate = Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)
    arrived = pickle.loads(pickle.dumps(Scorer(gate, "picture")))
    pixels = p.test.read(range(10))
    assert np.array_equal(arrived({"picture": pixels})["score"], gate.predict(pixels).score)


def test_features_are_taken_from_the_columns_of_their_names() -> None:
    gate = features_gate()
    rows = np.random.default_rng(1).normal(size=(20, 4))
    scored = Scorer(gate)({"features": rows, "id": np.arange(20)})
    assert np.array_equal(scored["score"], gate.predict_outputs(rows).score)
    assert "features" not in scored


def test_mistakes_get_a_sentence(gate: Gate) -> None:
    scorer = Scorer(gate)
    with pytest.raises(UsageError, match=r"Unknown column 'image'. Did you mean 'images'"):
        scorer({"images": np.zeros((1, 3, 32, 32), np.uint8)})
    with pytest.raises(UsageError, match="32×32"):
        scorer({"image": np.zeros((1, 3, 8, 8), np.uint8)})
    differing = np.empty(2, dtype=object)
    differing[0], differing[1] = np.zeros((3, 8, 8)), np.zeros((3, 9, 9))
    for given in (differing, [*differing]):
        with pytest.raises(UsageError, match="differ in shape"):
            scorer({"image": given})


# -- engines ---------------------------------------------------------------------------------
# Ray Data is in test_ray_workers.py, where a Ray is running. These run where they are installed.


@pytest.mark.filterwarnings("ignore")
def test_dask_maps_it_over_partitions(gate: Gate) -> None:
    dask_frame = pytest.importorskip("dask.dataframe", reason="Dask is not installed")
    import pandas as pd

    scorer = Scorer(gate)

    def score(part: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(scorer({name: part[name].to_numpy() for name in part}))

    table = pd.DataFrame({"id": range(20), "image": pd.Series(contents(20), dtype=object)})
    # Without this, Dask takes columns of bytes for text.
    with pytest.importorskip("dask").config.set({"dataframe.convert-string": False}):
        frame = dask_frame.from_pandas(table, npartitions=3)
        scored = frame.map_partitions(score, meta=score(table[:0])).compute(scheduler="processes")
    check_scored({name: scored[name].tolist() for name in scored}, gate, 20)


@pytest.mark.filterwarnings("ignore")
def test_datasets_of_hugging_face_map_it(gate: Gate, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    table = datasets.Dataset.from_dict({"id": range(20), "image": contents(20)})
    scored = table.map(
        Scorer(gate),
        batched=True,
        batch_size=7,
        remove_columns=["image"],
        num_proc=2,
        cache_file_name=str(tmp_path / "cache.arrow"),
    )
    check_scored(scored.to_dict(), gate, 20)


@pytest.mark.filterwarnings("ignore")
def test_spark_maps_it_over_pandas(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed")
    import pandas as pd

    spark = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    scorer = Scorer(gate)

    def score(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            yield pd.DataFrame(scorer({name: part[name].to_numpy() for name in part}))

    numbers = [f"`{n}` double" for n in score_columns(gate) if n not in ("label", "is_ood")]
    schema = ", ".join(["id long", "label string", *numbers, "is_ood boolean", "error string"])
    rows = [(i, bytearray(content)) for i, content in enumerate(contents(20))]
    try:
        table = spark.createDataFrame(rows, "id long, image binary").repartition(2)
        found = table.mapInPandas(score, schema).collect()
    finally:
        spark.stop()
    check_scored({n: [row[n] for row in found] for n in found[0].asDict()}, gate, 20)


@pytest.mark.filterwarnings("ignore")
def test_daft_calls_it_batch_by_batch(gate: Gate) -> None:
    daft = pytest.importorskip("daft", reason="Daft is not installed")
    table = daft.from_pydict({"id": list(range(20)), "image": contents(20)})
    names = ["score", "label", "is_ood", "error"]
    types = [daft.DataType.float64(), daft.DataType.string()]
    types += [daft.DataType.bool(), daft.DataType.string()]
    struct = daft.DataType.struct(dict(zip(names, types, strict=True)))

    @daft.udf(return_dtype=struct, batch_size=7)
    class Score:
        def __init__(self) -> None:
            self.scorer = scorer

        def __call__(self, images: "daft.Series") -> list[dict[str, object]]:
            scored = self.scorer({"image": images.to_pylist()})
            rows = zip(*(scored[name].tolist() for name in names), strict=True)
            return [dict(zip(names, row, strict=True)) for row in rows]

    scorer = Scorer(gate)
    found = table.select(table["id"], Score(table["image"]).alias("scored")).to_pydict()
    columns = {name: [row[name] for row in found["scored"]] for name in names}
    check_scored({"id": found["id"], **columns}, gate, 20)
