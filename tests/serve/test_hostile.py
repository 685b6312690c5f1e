"""A few hundred of the hostile requests of ``python -m tests.serve.hostile``."""

from goen.serve.settings import Limits, ServeSettings
from tests.serve.hostile import GOOD_EVERY, attack
from tests.serve.running import running

COUNT = 400


def test_hostile_requests_harm_nobody() -> None:
    limits = Limits(header_seconds=0.5, body_seconds=0.5, pixels=1_000_000)
    with running(ServeSettings(limits=limits)) as served:
        outcome = attack(served.port, "digits", COUNT, seed=0, clients=4)
        assert served.get("/v2/health/ready").status_code == 200
        assert served.service.find(None).queue.held == 0
    assert outcome.wrong == []
    assert outcome.good == COUNT // GOOD_EVERY
    assert sum(outcome.statuses.values()) == COUNT
    # Refused in every way, and some harmless after all.
    assert {200, 400, 404, 413, 415, 422} <= set(outcome.statuses)
    assert not {500, 502, 504} & set(outcome.statuses)
