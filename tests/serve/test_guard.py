"""Around every request: the token, the security headers, request ids, the log, our own errors."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

import goen.serve
from goen.errors import UsageError
from goen.serve.guard import REQUESTS, check_origin
from goen.serve.rejection import STATUS, Rejected
from goen.serve.settings import BatchLimits, Limits, ServeSettings
from tests.serve.running import SECONDS, Running, running, wait_for

TOKEN = "a token that is long enough"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(ServeSettings(token=TOKEN)) as found:
        yield found


def test_only_the_page_and_the_health_need_no_token(served: Running) -> None:
    paths = ["/gates", "/metrics", "/openapi.json", "/monitor/digits", "/v2", "/v2/models/digits"]
    for path in [
        *paths,
        "/nothing",
        "//",
        "/static",
        "/v2/health",
        "/%2e/v2/health/live/../metrics",
    ]:
        answer = served.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert served.get(path, Authorization=f"Bearer {TOKEN}").status_code != 401
    assert served.post("/score", b"x").status_code == 401
    assert served.post("/score", b"x", Authorization=f"Bearer {TOKEN}").status_code == 415
    assert served.get("/v2/health/live").status_code == 200
    assert served.get("/v2/health/ready").status_code == 200


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
)
def test_another_token_is_refused(served: Running, given: str) -> None:
    answer = served.get("/gates", Authorization=given)
    assert answer.status_code == 401
    assert TOKEN not in answer.text


def test_the_scheme_of_a_token_has_no_case(served: Running) -> None:
    for scheme in ("bearer", "BEARER", "Bearer"):
        assert served.get("/gates", Authorization=f"{scheme} {TOKEN}").status_code == 200


def test_every_answer_has_the_security_headers(served: Running) -> None:
    for path in ("/v2/health/live", "/gates", "/nothing"):
        headers = served.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"


def test_request_ids_are_in_the_answer_and_in_the_log(
    served: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, REQUESTS.name):
        known = served.get("/v2/health/live", **{"X-Request-ID": "abc-7"})
        unknown = served.get("/a\\n%0a", **{"X-Request-ID": "x" * 65})
        ids = ["abc-7", unknown.headers["x-request-id"]]
        wait_for(lambda: all(i in caplog.text for i in ids))  # logged after the answer
    assert known.headers["x-request-id"] == "abc-7"
    assert len(unknown.headers["x-request-id"]) == 16
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == REQUESTS.name]
    by_id = {line["request"]: line for line in lines}  # an earlier request may be logged as late
    assert by_id[ids[0]]["status"] == 200
    assert (by_id[ids[1]]["status"], by_id[ids[1]]["error"]) == (401, "unauthorized")
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_our_own_errors_have_no_traceback_in_the_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as found:
        monkeypatch.setattr(found.service, "find", lambda name: 1 / 0)
        answer = found.post("/score", b"x")
        assert answer.status_code == 500
        assert "ZeroDivision" not in answer.text
        assert answer.headers["x-request-id"] in answer.json()["error"]
        assert found.get("/v2/health/live").status_code == 200
    (record,) = [record for record in caplog.records if record.exc_info]
    assert answer.headers["x-request-id"] in record.getMessage()


def test_every_kind_of_rejection_is_known_and_used() -> None:
    folder = Path(goen.serve.__path__[0])
    source = "".join(file.read_text("utf-8") for file in folder.glob("*.py"))
    assert set(re.findall(r'Rejected\(\s*"(\w+)"', source)) == STATUS.keys()


LOCAL = ("127.0.0.1", "::1", "localhost")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8000", True), ("localhost", True), ("LOCALHOST:9", True), ("[::1]:8000", True),
        ("[::1]", True), ("evil.example", False), ("127.0.0.1.evil.example:8000", False),
        ("localhost:8000.evil.example", False), ("", False), ("[::2]:8000", False),
    ],
)  # fmt: skip
def test_a_service_without_a_token_answers_to_its_own_names(host: str, allowed: bool) -> None:
    scope = {"method": "GET", "headers": [(b"host", host.encode())] if host else []}
    check_origin(scope, ServeSettings())
    check_origin(scope, ServeSettings(token="a" * 16, hosts=LOCAL))
    if allowed:
        check_origin(scope, ServeSettings(hosts=LOCAL))
    else:
        with pytest.raises(Rejected, match=r"answers only to 127\.0\.0\.1, ::1") as refused:
            check_origin(scope, ServeSettings(hosts=LOCAL))
        assert refused.value.status == 403


@pytest.mark.parametrize(
    ("method", "headers", "allowed"),
    [
        ("POST", {}, True),  # no browser
        ("POST", {"origin": "http://127.0.0.1:8000"}, True),
        ("POST", {"origin": "http://evil.example"}, False),
        ("POST", {"origin": "null"}, False),
        ("POST", {"origin": "https://proxied.example", "sec-fetch-site": "same-origin"}, True),
        ("POST", {"sec-fetch-site": "cross-site"}, False),
        ("POST", {"sec-fetch-site": "same-site"}, False),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ("GET", {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),  # a link
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
    ],
)
def test_pages_from_elsewhere_are_refused(
    method: str, headers: dict[str, str], allowed: bool
) -> None:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"method": method, "headers": [(b"host", b"127.0.0.1:8000"), *given]}
    check_origin(scope, ServeSettings(token="a" * 16))  # the page cannot know it
    if allowed:
        check_origin(scope, ServeSettings())
    else:
        with pytest.raises(Rejected, match="page of another address"):
            check_origin(scope, ServeSettings())


def test_a_foreign_page_gets_403_and_is_not_counted() -> None:
    with running() as found:
        answer = found.post("/score", b"x", origin="http://evil.example")
        assert answer.status_code == 403
        assert "another address" in answer.json()["error"]
        assert 'goen_errors_total{kind="forbidden"} 1.0' in found.get("/metrics").text


@pytest.mark.parametrize("path", ["/v2/health/live", "/gates", "/nothing"])
def test_a_body_that_is_not_read_ends_the_connection(path: str) -> None:
    with running() as found:
        assert "connection" not in found.get(path).headers
        answer = found.post(path, b"x")
        assert answer.headers["connection"] == "close"
        chunked = requests.get(f"{found.url}{path}", data=iter([b"x"]), timeout=SECONDS)
        assert chunked.headers["connection"] == "close"
        assert "connection" not in found.post("/score", b"x").headers


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"token": "short"}, "16 to 4,096 characters"),
        ({"token": "a token\nwith a line break"}, "printable ASCII"),
        (
            {"keep_most": 0},
            "flagged images to keep must be an integer, at least 1; got 0",
        ),
        ({"batches": BatchLimits(most=0)}, "images in a batch must be an integer, at least 1"),
        (
            {"batches": BatchLimits(wait=-1)},
            "a batch waits must be a number, at least 0 and",
        ),
        ({"limits": Limits(bodies=0)}, "bytes of all requests must be an integer, at least 1"),
        (
            {"alarm_probability": 2},
            "alarm_probability must be a number, at least 1e-12 and below 1; got 2",
        ),
        ({"limits": Limits(header_seconds=0)}, "header_seconds must be a number, above 0"),
        ({"limits": Limits(body_seconds=-1)}, "body_seconds must be a number, above 0"),
        ({"limits": Limits(idle_seconds=-1)}, "idle_seconds must be an integer, at least 0"),
        ({"limits": Limits(drain_seconds=-1)}, "drain_seconds must be an integer, at least 0"),
        ({"hosts": "127.0.0.1"}, "hosts must be a tuple of names; got the text '127.0.0.1'"),
        ({"limits": Limits(pixels=10**9)}, "at most 178,956,970 pixels"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        ServeSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "beyond"), [(16, 15), (4096, 4097)])
def test_the_ends_of_what_may_be_set_are_allowed(length: int, beyond: int) -> None:
    limits = Limits(pixels=178_956_970, idle_seconds=0, drain_seconds=0)
    settings = ServeSettings(token="a" * length, limits=limits, batches=BatchLimits(wait=1))
    assert (settings.limits, len(settings.token or "")) == (limits, length)
    with pytest.raises(UsageError, match="16 to 4,096 characters"):
        ServeSettings(token="a" * beyond)
