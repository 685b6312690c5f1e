"""``--error-rate`` and ``--error-confidence``: which images a gate accepts."""

from dataclasses import replace

from goen.errors import UsageError
from goen.gate.error_rate import ErrorRate


def asked_error_rate(
    rate: float | None, confidence: float | None, saved: ErrorRate | None = None
) -> ErrorRate | None:
    """The error rate that is asked for; what is not given is that of the gate, if it has one.

    Args:
        rate: of --error-rate.
        confidence: of --error-confidence.
        saved: that of the gate.

    Raises:
        UsageError: a confidence without a rate, or numbers that are none of these.
    """
    if saved is not None:
        found = saved if rate is None else replace(saved, rate=rate)
    elif rate is not None:
        found = ErrorRate(rate)
    elif confidence is None:
        return None
    else:
        raise UsageError("--error-confidence goes with --error-rate RATE.")
    return found if confidence is None else replace(found, confidence=confidence)
