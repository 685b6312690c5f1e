"""The HTTP interface: every address, the rows of ``goen score``, and every refusal."""

import asyncio
import base64
import errno
import io
import json
import re
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image
from starlette.requests import Request
from starlette.types import Message

from goen.data import protocol
from goen.data.images.data_urls import image_url
from goen.data.images.decoding import read_image
from goen.data.sets.embedded import noise
from goen.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.serve import service
from goen.serve.settings import BatchLimits, Limits, ServeSettings
from goen.serve.uploads import Bodies
from tests.gate.storage.test_inputs import gate_of, labelled
from tests.image_sources import scored_rows
from tests.monitor.predictions import digit_gate
from tests.serve.running import SECONDS, Running, encoded, png, running, wait_for


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(gates={"digits": digit_gate(), "strict": strict_gate()}) as found:
        yield found


def strict_gate() -> Gate:
    return digit_gate().with_false_alarm_rate(0.02)


def images() -> list[bytes]:
    """Digits and noise, in several formats and sizes."""
    images = [*protocol("digits").test.read(range(12)), *noise(12, 0, stream=0).read()]
    forms = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
    return [encoded(image, forms[n % len(forms)]) for n, image in enumerate(images)]


def rows_of_goen_score(gate: Gate, files: list[bytes], folder: Path) -> list[ScoreRow]:
    paths = []
    for number, data in enumerate(files):
        paths.append(folder / str(number))
        paths[-1].write_bytes(data)
    return scored_rows(gate, *paths)


def assert_same(row: ScoreRow, expected: ScoreRow) -> None:
    """Equal decisions; numbers to the rounding of float32 in batches of another size."""
    assert row.keys() == expected.keys()
    for name in row.keys() - {"path"}:
        if isinstance(expected[name], float):
            assert row[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name
        else:
            assert row[name] == expected[name], name


def test_an_image_gets_the_row_of_goen_score(served: Running, tmp_path: Path) -> None:
    files = images()
    expected = rows_of_goen_score(digit_gate(), files, tmp_path)
    assert {row["is_ood"] for row in expected} == {True, False}
    for data, row in zip(files, expected, strict=True):
        answer = served.post("/score", data)
        assert answer.status_code == 200
        found = answer.json()
        assert found["path"] is None
        assert list(found) == list(row)
        assert_same(found, row)


def test_several_images_in_one_request(served: Running, tmp_path: Path) -> None:
    files = [*images()[:5], b"no image"]
    expected = rows_of_goen_score(digit_gate(), files, tmp_path)
    parts = [("file", (f"{n}.png", data)) for n, data in enumerate(files)]
    answer = requests.post(f"{served.url}/score", files=parts, timeout=SECONDS)
    assert answer.status_code == 200
    found = answer.json()
    assert [row["path"] for row in found] == [f"{n}.png" for n in range(6)]
    for row, other in zip(found[:5], expected[:5], strict=True):
        assert_same(row, other)
    assert found[5]["label"] is None
    assert found[5]["is_ood"] is None
    assert found[5]["error"].startswith("This is not an image")


def test_other_gates_are_at_their_names(served: Running) -> None:
    data = images()[0]
    default, named, strict = (
        served.post(path, data).json() for path in ("/score", "/score/digits", "/score/strict")
    )
    assert default == named
    assert strict["p_value"] == pytest.approx(named["p_value"])
    assert served.post("/score/other", data).status_code == 404
    assert served.post("/score/..%2fdigits", data).status_code == 404


def test_what_the_network_saw_comes_with_the_row(served: Running) -> None:
    data = encoded(np.random.default_rng(0).integers(0, 256, (3, 90, 70), dtype=np.uint8), "PNG")
    row = served.post("/score?seen=true", data).json()
    head, _, content = row["seen"].partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        seen = np.asarray(image).transpose(2, 0, 1)
    assert np.array_equal(seen, read_image(data, digit_gate().image_size))
    assert "seen" not in served.post("/score", data).json()


def test_refusals_have_a_status_and_a_sentence(served: Running) -> None:
    good = images()[0]
    cases = [
        ("POST", "/score", b"no image", {}, 415, "Send JPEG"),
        ("POST", "/score", b"", {}, 415, "Send JPEG"),
        ("POST", "/score", good[:-60], {}, 422, "broken or cut short"),
        ("POST", "/score", good, {"Content-Type": "multipart/form-data"}, 400, "boundary"),
        ("POST", "/score", good, {"Content-Encoding": "gzip"}, 400, "Content-Encoding"),
        ("GET", "/score", b"", {}, 405, "another method"),
        ("DELETE", "/v2", b"", {}, 405, "another method"),
        ("GET", "/nothing", b"", {}, 404, "/openapi.json lists"),
        ("GET", "/v2/models/other", b"", {}, 404, "Served: digits, strict"),
        ("GET", "/v2/models/digits/versions/2", b"", {}, 404, "one version"),
        ("GET", "/%00/%F0%9F/..", b"", {}, 404, "/openapi.json lists"),
    ]
    for method, path, body, headers, status, sentence in cases:
        answer = requests.request(
            method, served.url + path, data=body, headers=headers, timeout=SECONDS
        )
        assert answer.status_code == status, path
        assert list(answer.json()) == ["error"]
        assert sentence in answer.json()["error"]
        assert "Traceback" not in answer.text


def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    with running(ServeSettings(limits=Limits(body=1000))) as small:
        assert small.post("/score", b"x" * 1000).status_code == 415
        answer = small.post("/score", b"x" * 1001)
        assert answer.status_code == 413
        assert answer.headers["connection"] == "close"

        def chunks() -> Iterator[bytes]:  # of unknown length
            yield b"x" * 800
            yield b"x" * 800

        answer = requests.post(f"{small.url}/score", chunks(), timeout=SECONDS)
        assert answer.status_code == 413
        assert "at most 0.000953674 MB" in answer.json()["error"]


def test_all_bodies_together_are_bounded() -> None:
    with running(ServeSettings(limits=Limits(bodies=1000))) as small:
        assert small.post("/score", b"x" * 1000).status_code == 415
        answer = small.post("/score", b"x" * 1001)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert small.post("/score", b"x" * 1000).status_code == 415  # given back


def test_a_body_is_in_memory_once() -> None:
    size, parts = 1 << 16, 64

    async def used() -> int:
        left = iter(range(parts, 0, -1))

        async def receive() -> Message:
            return {"type": "http.request", "body": bytes(size), "more_body": next(left) > 1}

        scope = {"type": "http", "method": "POST", "path": "/score", "headers": []}
        async with Bodies(Limits()).read(Request(scope, receive)) as body:
            assert len(body) == size * parts
            return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        assert asyncio.run(used()) < 1.5 * size * parts
    finally:
        tracemalloc.stop()


def test_a_full_queue_answers_503_at_once() -> None:
    settings = ServeSettings(BatchLimits(capacity=2))
    with running(settings) as small:
        queue = small.service.find(None).queue
        queue.held = 1
        assert small.post("/score", images()[0]).status_code == 200
        queue.held = 2
        answer = small.post("/score", images()[0])
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        queue.held = 0
        assert small.post("/score", images()[0]).status_code == 200


def test_a_body_that_comes_too_slowly_is_refused() -> None:
    stopped = threading.Event()
    with running(ServeSettings(limits=Limits(body_seconds=0.05))) as small:

        def never() -> Iterator[bytes]:
            yield b"x"
            stopped.wait(SECONDS)

        with ThreadPoolExecutor(1) as pool:
            # The client goes on sending, so it may miss the answer; the service counts it.
            sent = pool.submit(requests.post, f"{small.url}/score", never(), timeout=SECONDS)
            wait_for(lambda: 'goen_errors_total{kind="slow"} 1.0' in small.get("/metrics").text)
            stopped.set()
            sent.exception(SECONDS)


def test_many_clients_at_once_get_the_rows_of_goen_score(tmp_path: Path) -> None:
    files = images()
    expected = rows_of_goen_score(digit_gate(), files, tmp_path)
    with running() as found:

        def client(number: int) -> list[tuple[int, ScoreRow]]:
            order = np.random.default_rng(number).integers(0, len(files), 40).tolist()
            with requests.Session() as session:
                return [
                    (n, session.post(f"{found.url}/score", files[n], timeout=SECONDS).json())
                    for n in order
                ]

        with ThreadPoolExecutor(8) as pool:
            answers = [pair for answer in pool.map(client, range(8)) for pair in answer]
        assert found.service.find(None).queue.held == 0
        monitor = found.service.find(None).monitor
        assert monitor is not None
        wait_for(lambda: monitor.state.images == 320)
    assert len(answers) == 320
    for number, row in answers:
        assert_same(row, expected[number])


def test_counts_for_prometheus(served: Running) -> None:
    served.post("/score/strict", images()[0])
    served.post("/score/strict", b"no image")
    monitor = served.service.find("strict").monitor
    assert monitor is not None
    counted = re.compile(r'^goen_batch_images_sum\{gate="strict"\} (\S+)$', re.MULTILINE)

    def all_monitored() -> bool:  # which is after the answer
        found = counted.search(served.get("/metrics").text)
        return found is not None and float(found[1]) == monitor.state.images

    wait_for(all_monitored)
    text = served.get("/metrics").text
    values = dict(re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE))
    passed, flagged = (
        float(values[f'goen_images_total{{decision="{decision}",gate="strict"}}'])
        for decision in ("passed", "flagged")
    )
    assert passed + flagged == float(values['goen_batch_images_sum{gate="strict"}']) >= 1
    assert float(values['goen_requests_total{endpoint="score",status="200"}']) >= 1
    assert float(values['goen_errors_total{kind="not_an_image"}']) >= 1
    assert values['goen_queue_images{gate="strict"}'] == "0.0"
    assert values['goen_alarm{gate="strict"}'] == "0.0"
    assert float(values['goen_alarm_line{gate="strict"}']) == pytest.approx(np.log(100))
    log_e_value = float(values['goen_log_e_value{gate="strict"}'])
    assert log_e_value == pytest.approx(monitor.state.log_e_value)
    assert values['goen_flagged_share{gate="strict"}'] == str(monitor.state.flagged)
    assert "process_resident_memory_bytes" in values


def test_the_description_lists_exactly_what_there_is(served: Running) -> None:
    described = served.get("/openapi.json").json()
    routes = {(r.path, *(r.methods - {"HEAD"})) for r in served.app.app.routes}
    listed = {
        (path, method.upper()) for path, methods in described["paths"].items() for method in methods
    }
    assert {route for route in routes if route[0] not in ("/", "/static/{name}")} == listed
    for reference in re.findall(r'"#/components/(\w+)/(\w+)"', json.dumps(described)):
        assert reference[1] in described["components"][reference[0]], reference
    score = described["paths"]["/score/{gate}"]["post"]
    assert [p["$ref"].rpartition("/")[2] for p in score["parameters"]] == ["gate", "seen"]
    assert score["requestBody"]["$ref"] == "#/components/requestBodies/score"
    assert score["responses"]["200"]["$ref"] == "#/components/responses/score"
    assert all(o["summary"] for path in described["paths"].values() for o in path.values())
    gate = described["components"]["parameters"]["gate"]
    assert gate["schema"]["enum"] == ["digits", "strict"]
    row = described["components"]["schemas"]["Row"]["properties"]
    assert set(row) == set(served.post("/score", images()[0]).json())
    assert row["label"]["type"] == "string"
    assert row["is_ood"]["type"] == "boolean"
    assert row["p_value"]["type"] == "number"


def test_whether_an_image_is_accepted_is_no_number() -> None:
    gate = digit_gate().with_error_rate(0.4, confidence=0.5)
    with running(gates={"digits": gate}) as found:
        row = found.get("/openapi.json").json()["components"]["schemas"]["Row"]["properties"]
        scored = found.post("/score", images()[0]).json()
    assert row["accepted"]["type"] == "boolean"
    assert scored["accepted"] in (True, False)
    assert set(row) == set(scored)


def test_the_gates_and_the_monitor_for_the_page(served: Running) -> None:
    about = served.get("/gates").json()
    digits, strict = about["gates"]
    assert digits["name"] == "digits"
    assert digits["classes"] == list(digit_gate().classes)
    assert digits["rates"]["held_out"] == digit_gate().num_held_out
    assert strict["rates"]["chosen"] == 0.02
    assert digits["cue_columns"] == ["p_early", "p_late", "p_entropy"]
    assert digits["columns"] == list(served.post("/score", images()[0]).json())
    monitor = served.service.find("digits").monitor
    assert monitor is not None
    wait_for(lambda: monitor.state.images > 0)
    found = served.get("/monitor/digits").json()
    assert found["monitor"]["alarm_line"] == pytest.approx(np.log(100))
    assert found["monitor"]["history"][-1]["images"] == found["monitor"]["images"]
    json.dumps(found, allow_nan=False)


def test_health(served: Running) -> None:
    assert served.get("/v2/health/live").status_code == 200
    assert served.get("/v2/health/ready").status_code == 200
    served.service.ready.clear()
    assert served.get("/v2/health/live").status_code == 200
    assert served.get("/v2/health/ready").status_code == 503
    assert served.get("/v2/models/digits/ready").status_code == 503
    served.service.ready.set()


def test_flagged_images_are_kept_only_if_asked(tmp_path: Path) -> None:
    flagged = png(noise(1, 0, stream=0).read()[0])
    with running(ServeSettings(keep_flagged=tmp_path / "kept", keep_most=2)) as keeping:
        for data in (*images()[:3], flagged, flagged, flagged):
            assert keeping.post("/score", data).status_code == 200
    kept = sorted((tmp_path / "kept").glob("flagged-*"))
    assert [file.read_bytes() for file in kept] == [flagged, flagged]
    assert all(re.fullmatch(r"flagged-[\dT-]+\.png", file.name) for file in kept)


def test_an_image_that_cannot_be_kept_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stale(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(service, "whole_file", stale)
    with running(ServeSettings(keep_flagged=tmp_path)) as keeping:
        answer = keeping.post("/score", png(noise(1, 0, stream=0).read()[0]))
    assert (answer.status_code, answer.json()["is_ood"]) == (200, True)
    assert "was not kept: [Errno 116] Stale file handle" in caplog.text


def test_a_gate_of_grey_images_is_served_grey_images() -> None:
    gate = gate_of("grey")
    (image,), _ = labelled("grey", 1, 2)
    with running(gates={"grey": gate}) as served:
        content = io.BytesIO()
        Image.fromarray(image[0]).save(content, "PNG")
        row = served.post("/score?seen=true", content.getvalue()).json()
        assert row["score"] == pytest.approx(float(gate.predict(image).score[0]), abs=1e-4)
        assert row["seen"] == image_url(image)
