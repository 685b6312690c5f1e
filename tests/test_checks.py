import math

import numpy as np
import pytest

from goen.checks import check_choice, check_number, check_seed
from goen.errors import UsageError


def test_another_choice_is_an_error_with_the_nearest() -> None:
    check_choice("flip", "never", ("random", "never"))
    with pytest.raises(UsageError, match=r"Unknown flip 'nevr'\. Did you mean 'never'"):
        check_choice("flip", "nevr", ("random", "never"))
    with pytest.raises(UsageError, match=r"Unknown flip False\. Known: never, random"):
        check_choice("flip", False, ("random", "never"))


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_a_number_within_its_bounds_passes(value: float) -> None:
    check_number("share", value, at_least=0, at_most=1)
    check_number("share", value, above=-1, below=2)


def test_every_bound_is_checked() -> None:
    check_number("share", 0.0, at_least=0)
    check_number("share", 1.0, at_most=1)
    for bound, value in (("at_least", -0.1), ("above", 0.0), ("at_most", 0.1), ("below", 0.0)):
        words = bound.replace("_", " ")
        with pytest.raises(UsageError, match=f"share must be a number, {words} 0; got {value}"):
            check_number("share", value, **{bound: 0})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be a number, above 0 and at most 1; got 2"):
        check_number("share", 2, above=0, at_most=1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, True])
def test_what_is_not_a_finite_number_is_an_error(value: float) -> None:
    with pytest.raises(UsageError, match="share must be a number; got"):
        check_number("share", value)


def test_an_integer_has_no_fraction() -> None:
    check_number("epochs", np.int64(3), whole=True, at_least=1)
    for value in (2.5, 3.0):
        with pytest.raises(UsageError, match="epochs must be an integer, at least 1; got"):
            check_number("epochs", value, whole=True, at_least=1)


def test_a_seed_has_32_bits() -> None:
    for seed in (0, 2**32 - 1):
        check_seed(seed)
    for seed in (-1, 2**32, 10**400):
        with pytest.raises(UsageError, match="at least 0 and at most 4294967295"):
            check_seed(seed)
