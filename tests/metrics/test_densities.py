"""NLL after each task, by hand on three tasks."""

import numpy as np
import pytest

from tffcl import metrics
from tffcl.errors import InputError

NAN = float("nan")
# Two clients, three tasks; the second client had no data for its second task.
FIRST = [[80.0, NAN, NAN], [84.0, 90.0, NAN], [83.0, 88.0, 99.0]]
SECOND = [[70.0, NAN, NAN], [71.0, NAN, NAN], [76.0, NAN, 60.0]]


def test_one_client_by_hand():
    assert metrics.average_nll(FIRST) == pytest.approx([80, 87, 90])
    assert metrics.base_task_nll(FIRST) == pytest.approx([80, 84, 83])
    assert metrics.new_task_nll(FIRST) == pytest.approx([80, 90, 99])


def test_clients_are_averaged_and_what_is_missing_is_left_out():
    both = [FIRST, SECOND]
    assert metrics.average_nll(both) == pytest.approx([75, (84 + 90 + 71) / 3, (83 + 88 + 99 + 76 + 60) / 5])
    assert metrics.base_task_nll(both) == pytest.approx([75, 77.5, 79.5])
    assert metrics.new_task_nll(both) == pytest.approx([75, 90, 79.5])


def test_forgetting_has_the_sign_of_a_rise():
    # Appendix B.3 as printed would give (max(0, 84 - 83) + max(0, 90 - 88)) / 2 = 1.5: what was gained back.
    assert metrics.forgetting(FIRST, higher_is_better=False) == pytest.approx((3 + 0) / 2)
    assert metrics.forgetting([FIRST, SECOND], higher_is_better=False) == pytest.approx((3 + 0 + 6) / 3)


def test_above_the_diagonal_does_not_count():
    filled = np.where(np.isnan(FIRST), 500.0, FIRST)
    for of in (metrics.average_nll, metrics.base_task_nll, metrics.new_task_nll):
        assert of(filled) == pytest.approx(of(FIRST))
        with pytest.raises(InputError, match="nll: expected shape"):
            of([1.0, 2.0])
