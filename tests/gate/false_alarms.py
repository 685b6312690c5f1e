"""How many flags of ID inputs a guarantee allows."""

from scipy.stats import betabinom

from goen.gate import Gate


def flags_allowed(gate: Gate, count: int) -> tuple[int, int]:
    """The fewest and the most flags of ``count`` new ID inputs, with probability 0.9998.

    The false-alarm rate of one gate is Beta distributed over held-out sets, so the number of its
    flags is beta-binomial.
    """
    held_out = len(gate.held_out)
    below = int(gate.false_alarm_rate * (held_out + 1))
    law = betabinom(count, below, held_out + 1 - below)
    return int(law.ppf(1e-4)), int(law.ppf(1 - 1e-4))
