"""Checks of arguments: whatever is no such number is one InputError that names the argument."""

import numpy as np
import pytest

from tffcl import errors

NONE = (0, -0.5, float("nan"), float("inf"), "half", None, True, [0.5])


@pytest.mark.parametrize("value", NONE, ids=repr)
@pytest.mark.parametrize("check", [errors.check_above_zero, errors.check_between_0_and_1])
def test_what_is_no_such_number_is_refused_by_name(check, value):
    with pytest.raises(errors.InputError, match="share: expected a number"):
        check("share", value)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5)])
def test_numbers_of_numpy_are_numbers(value):
    errors.check_above_zero("share", value)
    errors.check_between_0_and_1("share", value)
