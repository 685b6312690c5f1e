import re
import time

import pytest

from goen.serve.metrics import Metrics


def test_histograms_have_buckets_for_fast_and_slow_requests() -> None:
    metrics = Metrics()
    metrics.latency.labels("score").observe(0.03)
    metrics.predicting.labels("a").observe(0.03)
    metrics.batches.labels("a").observe(3)
    text = metrics.text().decode()
    seconds = "0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1.0 2.0 5.0 10.0 +Inf".split()
    for name, edges, empty in (
        ("request_seconds", seconds, 4),
        ("batch_seconds", seconds, 4),
        ("batch_images", "1.0 2.0 4.0 8.0 16.0 32.0 64.0 128.0 256.0 +Inf".split(), 2),
    ):
        found = re.findall(rf'goen_{name}_bucket{{.*le="(.*?)".*}} (\S+)', text)
        assert [edge for edge, _ in found] == edges
        assert [count for _, count in found] == ["0.0"] * empty + ["1.0"] * (len(edges) - empty)


def test_a_moment_has_the_rate_and_the_latencies_of_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    activity = Metrics().activity
    activity.answered(9.0, 6)
    now = 100.5
    activity.answered(1.0, 2)
    activity.answered(3.0, 2)
    now = 110.0
    activity.tick(7)
    now = 110.5
    activity.tick(0)
    now = 120.6
    activity.tick(0)
    first, second, third = activity.moments
    assert (first["images_per_second"], first["waiting"]) == (1.0, 7)
    assert (first["median_seconds"], first["p99_seconds"]) == (3.0, pytest.approx(8.88))
    assert (second["images_per_second"], second["median_seconds"]) == (0.0, 2.0)
    assert (third["median_seconds"], third["p99_seconds"]) == (None, None)


def test_the_last_requests_and_moments_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    activity = Metrics().activity
    for seconds in [5.0] + 2000 * [1.0]:
        activity.answered(seconds, 1)
    for waiting in range(451):
        activity.tick(waiting)
    assert [moment["waiting"] for moment in activity.moments] == list(range(1, 451))
    assert activity.moments[0]["p99_seconds"] == 1.0
