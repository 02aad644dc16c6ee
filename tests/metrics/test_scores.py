"""Metrics against matrices worked out by hand, and against loops."""

import math

import numpy as np
import pytest

from tffcl import metrics
from tffcl.errors import InputError

NAN = float("nan")
# One client, three tasks. Worked out by hand:
#   TTA                (0.6 + 0.7 + 0.8) / 3                          = 0.7
#   average accuracy   0.9, (0.95 + 0.8) / 2 = 0.875, 0.7
#   forgetting         ((0.95 - 0.6) + (0.8 - 0.7)) / 2               = 0.225
#   backward transfer  ((0.6 - 0.9) + (0.7 - 0.8)) / 2                = -0.2
#   learning accuracy  (0.9 + 0.8 + 0.8) / 3, of later tasks 0.8
MATRIX = [[0.9, NAN, NAN], [0.95, 0.8, NAN], [0.6, 0.7, 0.8]]
# Losses; above the diagonal, the loss on a task not yet learned.
#   forgetting         (max(0, 2.5 - 1.0) + max(0, 1.0 - 1.5)) / 2    = 0.75
#   backward transfer  -((2.5 - 2.0) + (1.0 - 1.5)) / 2               = 0
#   forward transfer   -((3.0 - 5.0) + (4.0 - 4.5)) / 2               = 1.25
LOSSES = [[2.0, 3.0, 9.0], [1.0, 1.5, 4.0], [2.5, 1.0, 0.5]]


def test_three_by_three_by_hand():
    assert metrics.task_averaged_test_accuracy(MATRIX) == pytest.approx(0.7)
    assert metrics.average_accuracy(MATRIX) == pytest.approx([0.9, 0.875, 0.7])
    assert metrics.forgetting(MATRIX) == pytest.approx(0.225)
    assert metrics.backward_transfer(MATRIX) == pytest.approx(-0.2)
    assert metrics.learning_accuracy(MATRIX) == pytest.approx(2.5 / 3)
    assert metrics.learning_accuracy(MATRIX, first=1) == pytest.approx(0.8)


def test_by_task_counts_only_the_clients_that_have_data():
    other = [[0.5, NAN, NAN], [NAN, NAN, NAN], [NAN, 0.5, NAN]]
    found = metrics.accuracy_by_task([MATRIX, other])
    assert found == pytest.approx(np.array([[0.7, NAN, NAN], [0.95, 0.8, NAN], [0.6, 0.6, 0.8]]), nan_ok=True)
    assert metrics.accuracy_by_task(MATRIX) == pytest.approx(np.array(MATRIX), nan_ok=True)


def test_losses_by_hand():
    assert metrics.forgetting(LOSSES, higher_is_better=False) == pytest.approx(0.75)
    assert metrics.backward_transfer(LOSSES, higher_is_better=False) == pytest.approx(0)
    assert metrics.forward_transfer(LOSSES, [7, 5, 4.5], higher_is_better=False) == pytest.approx(1.25)
    assert metrics.forward_transfer(LOSSES, [7, 5, 4.5]) == pytest.approx(-1.25)


def test_forgetting_is_below_zero_where_later_tasks_helped():
    assert metrics.forgetting([[0.5, NAN], [0.75, 0.9]]) == pytest.approx(-0.25)
    assert metrics.forgetting([[2.0, NAN], [1.0, 0.5]], higher_is_better=False) == 0


def test_forgetting_takes_no_score_from_before_a_task_was_learned():
    assert metrics.forgetting([[0.9, 0.99, NAN], [0.9, 0.5, NAN], [0.9, 0.4, 0.9]]) == pytest.approx(0.05)


def test_no_data_is_not_zero():
    # Client 0 has no test documents for task 0; client 1 was away after task 1.
    accuracy = [[[None, None], [None, 0.8]], [[0.6, None], [None, None]]]
    assert metrics.task_averaged_test_accuracy(accuracy) == pytest.approx(0.8)
    assert metrics.average_accuracy(accuracy) == pytest.approx([0.6, 0.8])
    assert math.isnan(metrics.forgetting(accuracy))
    assert math.isnan(metrics.backward_transfer(accuracy))
    hole = [[0.9, NAN, NAN], [NAN, 0.8, NAN], [0.6, NAN, 0.8]]
    assert metrics.forgetting(hole) == pytest.approx(0.3)
    assert math.isnan(metrics.task_averaged_test_accuracy(np.full((2, 3, 3), NAN)))


def test_one_task():
    assert metrics.task_averaged_test_accuracy([[[0.4]], [[0.6]]]) == pytest.approx(0.5)
    assert metrics.average_accuracy([[0.5]]) == pytest.approx([0.5])
    for value in (
        metrics.forgetting([[0.5]]),
        metrics.forgetting([[0.5]], higher_is_better=False),
        metrics.backward_transfer([[0.5]]),
        metrics.forward_transfer([[0.5]], [0.1]),
    ):
        assert math.isnan(value)


@pytest.mark.parametrize("seed", range(5))
def test_many_clients_against_loops(seed):
    rng = np.random.default_rng(seed)
    scores = rng.random((3, 4, 4))
    baseline = rng.random((3, 4))
    clients, old = range(3), range(3)
    rises = [max(0, scores[c][3][i] - min(scores[c][t][i] for t in range(i, 3))) for c in clients for i in old]
    assert metrics.task_averaged_test_accuracy(scores) == pytest.approx(
        sum(scores[c][3][i] for c in clients for i in range(4)) / 12
    )
    assert metrics.forgetting(scores) == pytest.approx(
        sum(max(scores[c][t][i] for t in range(i, 3)) - scores[c][3][i] for c in clients for i in old) / 9
    )
    assert metrics.forgetting(scores, higher_is_better=False) == pytest.approx(sum(rises) / 9)
    assert metrics.backward_transfer(scores) == pytest.approx(
        sum(scores[c][3][i] - scores[c][i][i] for c in clients for i in old) / 9
    )
    assert metrics.learning_accuracy(scores, first=1) == pytest.approx(
        sum(scores[c][i][i] for c in clients for i in range(1, 4)) / 9
    )
    assert metrics.forward_transfer(scores, baseline) == pytest.approx(
        sum(scores[c][i - 1][i] - baseline[c][i] for c in clients for i in range(1, 4)) / 9
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([[1.0, 2.0]], r"expected shape \[clients, tasks, tasks\], got \[1, 1, 2\]"),
        ([0.5], r"got \[1\]"),
        ([], "expected shape"),
        ([[1.0], [1.0, 2.0]], "expected numbers"),
        ([["high"]], "expected numbers"),
        ([[np.inf]], "infinite"),
    ],
)
def test_wrong_scores(wrong, message):
    with pytest.raises(InputError, match=message):
        metrics.forgetting(wrong)


def test_forward_transfer_needs_a_baseline_and_scores_ahead():
    with pytest.raises(InputError, match=r"needs a baseline \[1, 3\]"):
        metrics.forward_transfer(LOSSES, None)
    with pytest.raises(InputError, match=r"baseline: expected shape \[1, 3\], got \[1, 2\]"):
        metrics.forward_transfer(LOSSES, [1, 2])
    with pytest.raises(InputError, match="before it was learned"):
        metrics.forward_transfer(MATRIX, [0.1, 0.1, 0.1])


# -- NLL after each task ------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    ("nonzero", "size", "expected"),
    [
        (0, 0, 0),
        (0, 1000, 0),
        (1, 1000, 4 + 4),  # an index
        (100, 1000, 400 + 125),  # a bitmap of 125 bytes is smaller than 100 indices
        (31, 1000, 124 + 124),
        (32, 1000, 128 + 125),  # where one overtakes the other
        (9, 9, 36 + 2),  # nine bits need two bytes
    ],
)
def test_sparse_bytes_by_hand(nonzero, size, expected):
    assert metrics.sparse_bytes(nonzero, size) == expected
    assert metrics.sparse_bytes(np.int64(nonzero), np.int32(size)) == expected


def test_dense_bytes():
    assert metrics.dense_bytes(7) == 28
    assert isinstance(metrics.dense_bytes(np.int32(2**31 - 1)), int)
    assert metrics.dense_bytes(np.int32(2**31 - 1)) == 4 * (2**31 - 1)


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", None, True])
def test_counts_must_be_whole(wrong):
    with pytest.raises(InputError, match="num_values must be a whole number"):
        metrics.dense_bytes(wrong)
    with pytest.raises(InputError, match="must be a whole number"):
        metrics.sparse_bytes(0, wrong)


def test_more_nonzero_than_entries():
    with pytest.raises(InputError, match="num_nonzero=5 is more than size=4"):
        metrics.sparse_bytes(5, 4)
