"""The Open Inference Protocol, spoken by Triton's own client, and by hand where it is broken."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from PIL import Image
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from goen.data import protocol
from goen.data.images.decoding import read_image
from goen.data.imageset import Pixels
from goen.data.sets.embedded import noise
from goen.gate import Gate
from goen.gate.export.comparison import as_outputs
from goen.gate.export.traceable import TraceableGate, output_names
from goen.serve.inference_protocol import (
    HEADER_LENGTH,
    InferRequest,
    fitted_image,
    infer_outputs,
    infer_response,
    model_metadata,
    parse_infer,
)
from goen.serve.rejection import Rejected
from goen.serve.settings import Limits, ServeSettings
from tests.gate.storage.test_inputs import gate_of
from tests.monitor.predictions import digit_gate
from tests.serve.running import Running, running


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(gates={"digits": digit_gate(), "per-class": per_class_gate()}) as found:
        yield found


def per_class_gate() -> Gate:
    return digit_gate().with_false_alarm_rate(0.2).with_per_class()


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(served.url.removeprefix("http://")) as found:
        yield found


def images() -> Pixels:
    return np.concatenate([protocol("digits").test.read(range(6)), noise(4, 0, stream=0).read()])


def tensor(values: Pixels, *, binary: bool) -> triton.InferInput:
    found = triton.InferInput("images", list(values.shape), "UINT8")
    found.set_data_from_numpy(values, binary_data=binary)
    return found


def test_tritons_client_finds_server_and_gate(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "goen"
    about = client.get_model_metadata("digits")
    assert about["inputs"][0] == {"name": "images", "datatype": "UINT8", "shape": [-1, 3, -1, -1]}
    assert about["parameters"]["classes"] == list(digit_gate().classes)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tritons_client_gets_the_gates_predictions(
    client: triton.InferenceServerClient, binary_in: bool, binary_out: bool
) -> None:
    expected = as_outputs(digit_gate().predict(images()))
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in expected]
    given = [tensor(images(), binary=binary_in)]
    answer = client.infer("digits", given, outputs=outputs, request_id="seven")
    assert answer.get_response()["id"] == "seven"
    assert answer.get_response()["model_name"] == "digits"
    for name, values in expected.items():
        found = answer.as_numpy(name)
        assert found.shape == values.shape
        assert found.dtype == values.dtype
        np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-5)


def test_all_outputs_are_binary_if_none_are_named(client: triton.InferenceServerClient) -> None:
    answer = client.infer("digits", [tensor(images(), binary=True)])
    expected = as_outputs(digit_gate().predict(images()))
    assert [output["name"] for output in answer.get_response()["outputs"]] == list(expected)
    assert np.array_equal(answer.as_numpy("is_ood"), expected["is_ood"])


def test_images_of_another_size_are_resized_as_images_are(
    client: triton.InferenceServerClient,
) -> None:
    large = np.random.default_rng(0).integers(0, 256, (2, 3, 50, 40), dtype=np.uint8)
    images = [read_image(Image.fromarray(i.transpose(1, 2, 0)), (32, 32)) for i in large]
    expected = digit_gate().predict(np.stack(images))
    found = client.infer("digits", [tensor(large, binary=True)]).as_numpy("score")
    np.testing.assert_allclose(found, expected.score, rtol=1e-4)


def test_names_types_and_shapes_are_those_of_the_exported_file(
    client: triton.InferenceServerClient,
) -> None:
    """The file computes what the traceable gate does: see tests/gate/export/test_onnx.py."""
    gate = digit_gate()
    with torch.inference_mode():
        traced = TraceableGate(gate)(torch.from_numpy(images()), gate.threshold_tensor)
    about = client.get_model_metadata("digits")
    assert [output["name"] for output in about["outputs"]] == list(output_names(gate))
    answer = client.infer("digits", [tensor(images(), binary=True)])
    for output, values in zip(about["outputs"], traced, strict=True):
        assert triton_to_np_dtype(output["datatype"]) == values.numpy().dtype
        assert output["shape"] == [-1, *values.shape[1:]]
        np.testing.assert_allclose(answer.as_numpy(output["name"]), values, rtol=1e-3, atol=1e-2)
    assert about["parameters"]["engine"] == "torch"
    threshold = about["inputs"][1]
    assert (threshold["name"], threshold["shape"]) == ("threshold", [])


def test_another_threshold_changes_the_decision_alone(client: triton.InferenceServerClient) -> None:
    scores = digit_gate().predict(images()).score
    line = float(np.median(scores))
    for shape in ([1], []):
        threshold = triton.InferInput("threshold", shape, "FP64")
        threshold.set_data_from_numpy(np.full(shape, line))
        answer = client.infer("digits", [tensor(images(), binary=True), threshold])
        np.testing.assert_allclose(answer.as_numpy("score"), scores, rtol=1e-4)
        assert np.array_equal(answer.as_numpy("is_ood"), answer.as_numpy("score") > line)
    with pytest.raises(InferenceServerException, match="threshold should hold 7 numbers, got 1"):
        client.infer("per-class", [tensor(images(), binary=True), threshold])
    prediction = per_class_gate().predict(images())
    lines = np.linspace(0, 10, 7)
    threshold = triton.InferInput("threshold", [7], "FP64")
    threshold.set_data_from_numpy(lines)
    answer = client.infer("per-class", [tensor(images(), binary=True), threshold])
    assert np.array_equal(answer.as_numpy("is_ood"), prediction.score > lines[prediction.label])


def test_no_images_give_empty_outputs(client: triton.InferenceServerClient) -> None:
    answer = client.infer("digits", [tensor(images()[:0], binary=True)])
    assert answer.as_numpy("score") is None or answer.as_numpy("score").shape == (0,)
    assert answer.get_response()["outputs"][0]["shape"] == [0]


def request_of(**changes: Any) -> bytes:
    one = {"name": "images", "datatype": "UINT8", "shape": [1, 3, 1, 1], "data": [1, 2, 3]}
    return json.dumps({"inputs": [{**one, **changes}]}).encode()


def threshold_of(data: list[Any]) -> bytes:
    return request_of(name="threshold", datatype="FP64", shape=[1], data=data)


def test_nested_data_is_the_same_as_flat() -> None:
    flat = parse_infer(request_of(), None, digit_gate(), Limits())
    nested = parse_infer(request_of(data=[[[[1]], [[2]], [[3]]]]), None, digit_gate(), Limits())
    assert flat.images.tolist() == nested.images.tolist() == [[[[1]], [[2]], [[3]]]]
    assert flat.id is None
    assert flat.outputs == dict.fromkeys(as_outputs(digit_gate().predict(images())), False)


@pytest.mark.parametrize(
    ("body", "length", "sentence"),
    [
        (b"", None, "no inference request"),
        (b"[]", None, "not a JSON object"),
        (b'{"inputs": 3}', None, "a list of objects"),
        (b'{"inputs": []}', None, "no input 'images'"),
        (b'{"a":' * 100_000, None, "nested|no inference"),
        (b"[" * 1_000_000, None, "nested|not a JSON object"),
        (b'{"inputs": [{"name": "images"}]}', None, "datatype"),
        (request_of(name="other"), None, "unknown input"),
        (request_of(datatype="FP32"), None, "UINT8"),
        (request_of(shape=[1, 3, 1]), None, r"\(N, 3, H, W\)"),
        (request_of(shape=[1, 4, 1, 1]), None, r"\(N, 3, H, W\)"),
        (request_of(shape=[1, 3, 0, 1]), None, r"\(N, 3, H, W\)"),
        (request_of(shape=[-1, 3, 1, 1]), None, "whole numbers"),
        (request_of(shape=[True, 3, 1, 1]), None, "whole numbers"),
        (request_of(shape=[1, 3, 2, 1]), None, "has 3 numbers"),
        (request_of(data=[1, 2, 256]), None, "0 to 255"),
        (request_of(data=[1, 2, -1]), None, "0 to 255"),
        (request_of(data=[1, 2, 10**30]), None, "too large"),
        (request_of(data=[1, 2, 0.5]), None, "whole numbers"),
        (request_of(data=[1, [2], 3]), None, "whole numbers"),
        (request_of(data=[[1], [2, 3], [4]]), None, "whole numbers"),
        (request_of(data=["a", "b", "c"]), None, "whole numbers"),
        (request_of(data=[1, 2, True]), None, "whole numbers"),
        (threshold_of([10**400]), None, "too large"),
        (threshold_of(["1"]), None, "should hold numbers"),
        (request_of(data=None), None, "neither data"),
        (request_of(parameters={"binary_data_size": 3}), None, "0 bytes are left"),
        (request_of(parameters={"binary_data_size": "3"}), None, "whole number"),
        (request_of() + b"xyz", str(len(request_of())), "belong to no input"),
        (request_of(), "1000000", "but the body has"),
        (request_of(), "-1", "whole number"),
        (request_of(), "9" * 5000, "whole number"),
        (request_of(), "²", "whole number"),
    ],
)
def test_broken_requests_are_refused(body: bytes, length: str | None, sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence) as refused:
        parse_infer(body, length, digit_gate(), Limits())
    assert refused.value.status == 400


def test_limits_of_images_and_pixels() -> None:
    limits = Limits(images=2, pixels=100)
    sizes = {(3, 3, 1, 1): "at most 2 images", (1, 3, 11, 10): "at most 100"}
    for shape, sentence in sizes.items():
        with pytest.raises(Rejected, match=sentence) as refused:
            parse_infer(request_of(shape=list(shape)), None, digit_gate(), limits)
        assert refused.value.status == 413
    within = request_of(shape=[2, 3, 10, 10], data=[0] * 600)
    assert parse_infer(within, None, digit_gate(), limits).images.shape == (2, 3, 10, 10)


def test_large_json_is_refused() -> None:
    most = request_of() + b" " * ((1 << 23) - len(request_of()))
    assert len(parse_infer(most, None, digit_gate(), Limits()).images) == 1
    body = request_of() + b" " * (1 << 23)
    with pytest.raises(Rejected, match="send images as binary data"):
        parse_infer(body, None, digit_gate(), Limits())


def test_a_long_text_among_the_numbers_takes_no_more_memory_than_itself() -> None:
    body = request_of(shape=[1, 3, 10, 10], data=[*[0] * 299, "x" * 100_000])
    tracemalloc.start()
    try:
        with pytest.raises(Rejected, match="whole numbers"):
            parse_infer(body, None, digit_gate(), Limits())
        # Of one array of texts it would be 300 · 100,000 · 4 bytes.
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_an_infinite_score_is_null_in_json_and_infinite_in_binary_data() -> None:
    outputs = {"score": np.array([np.inf, 1.5])}
    for binary in (False, True):
        asked = InferRequest(None, images(), None, {"score": binary})
        answer = infer_response("digits", asked, outputs)
        length = answer.headers.get(HEADER_LENGTH)
        if binary:
            assert length is not None
            assert np.frombuffer(answer.body[int(length) :], "<f8").tolist() == [np.inf, 1.5]
        else:
            assert length is None
            assert json.loads(answer.body)["outputs"][0]["data"] == [None, 1.5]


@pytest.mark.parametrize("keeps", [False, True])
def test_flagged_images_are_kept_in_one_go_and_only_if_asked(tmp_path: Path, keeps: bool) -> None:
    pixels = np.concatenate([protocol("digits").test.read(range(4)), noise(4, 0, stream=0).read()])
    about = {"name": "images", "datatype": "UINT8", "shape": list(pixels.shape)}
    body = json.dumps({"inputs": [{**about, "data": pixels.ravel().tolist()}]}).encode()
    settings = ServeSettings(keep_flagged=tmp_path if keeps else None)
    with running(settings) as served:
        submitted: list[object] = []
        run = served.service.threads.run
        served.service.threads.run = lambda work: (submitted.append(work), run(work))[1]  # type: ignore[method-assign]
        answer = served.post("/v2/models/digits/infer", body).json()
    flagged = next(o["data"] for o in answer["outputs"] if o["name"] == "is_ood")
    assert flagged[4:] == [True] * 4
    assert len(list(tmp_path.glob("flagged-*"))) == (sum(flagged) if keeps else 0)
    # The request, each image, the outputs, and what is kept.
    assert len(submitted) == 1 + 8 + 1 + keeps


def test_a_gate_of_bands_takes_its_channels_and_bits() -> None:
    gate = gate_of("thirteen bands of 16 bits")
    (about, _) = model_metadata("tiles", gate)["inputs"]  # type: ignore[misc]
    assert about == {"name": "images", "datatype": "UINT16", "shape": [-1, 13, -1, -1]}
    tiles = np.random.default_rng(0).integers(0, 65536, (2, 13, 10, 12), dtype=np.uint16)

    def asked(
        datatype: str = "UINT16", channels: int = 13, first: int | None = None
    ) -> InferRequest:
        data = tiles[:, :channels].ravel().tolist()
        data[0] = data[0] if first is None else first
        shape = [2, channels, 10, 12]
        inputs = [{"name": "images", "datatype": datatype, "shape": shape, "data": data}]
        return parse_infer(json.dumps({"inputs": inputs}).encode(), None, gate, Limits())

    found = asked().images
    assert found.dtype == np.uint16
    assert np.array_equal(found, tiles)
    assert np.array_equal(fitted_image(found[0], (10, 12)), tiles[0])
    assert fitted_image(found[0], (5, 6)).shape == (13, 5, 6)
    assert len(infer_outputs(gate, [], None)["score"]) == 0
    for options, message in (
        ({"datatype": "UINT8"}, "datatype UINT16, got UINT8"),
        ({"channels": 12}, r"shape \(N, 13, H, W\)"),
        ({"first": 65536}, "numbers from 0 to 65535"),
    ):
        with pytest.raises(Rejected, match=message):
            asked(**options)  # type: ignore[arg-type]


def test_scores_within_the_difference_of_the_engines_are_not_above_a_threshold() -> None:
    gate = digit_gate().with_engine("onnxruntime")
    prediction = gate.predict(images())
    scored = [prediction]
    lowest = float(prediction.score.min())
    line = np.array(lowest - 0.9 * gate.score_tolerance)
    assert not infer_outputs(gate, scored, line)["is_ood"][prediction.score.argmin()]
    line = np.array(lowest - 1.1 * gate.score_tolerance)
    assert infer_outputs(gate, scored, line)["is_ood"].all()
