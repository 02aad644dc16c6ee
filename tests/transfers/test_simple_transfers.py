from __future__ import annotations

import numpy as np
import pytest

from tffcl import errors, transfers


def base_of(pairs) -> transfers.KnowledgeBase:
    base = transfers.KnowledgeBase(2)
    for number, (client, task) in enumerate(pairs):
        base.add(client, task, np.full(2, number + 1, np.float32))
    return base


def chosen(base, selection) -> list[tuple[int, int]]:
    return [base.entries[entry] for entry in selection]


# In the order in which they came, which is not that of the clients.
PAIRS = [(2, 0), (0, 0), (1, 0), (1, 1), (0, 1), (2, 1), (0, 2)]


def test_none():
    transfer = transfers.NoTransfer()
    assert transfer.num_foreign(5) == 0
    assert transfer.select(base_of(PAIRS), 2, [0, 1], [None, None]) == [[], []]
    assert transfer.summarise(np.zeros([3, 2]), 0) is None
    assert not transfer.needs_summaries


def test_previous_task_of_the_others_by_client():
    base, transfer = base_of(PAIRS), transfers.PreviousTask()
    assert transfer.num_foreign(3) == 2
    selections = transfer.select(base, 2, [1, 0], [None, None])
    assert [chosen(base, s) for s in selections] == [[(0, 1), (2, 1)], [(1, 1), (2, 1)]]
    assert transfer.select(base, 0, [0, 1], [None, None]) == [[], []]


def test_previous_task_with_the_clients_own():
    base, transfer = base_of(PAIRS), transfers.PreviousTask(include_own=True)
    assert transfer.num_foreign(3) == 3
    (selection,) = transfer.select(base, 1, [1], [None])
    assert chosen(base, selection) == [(0, 0), (1, 0), (2, 0)]


def test_previous_task_of_a_client_that_was_away():
    base, transfer = base_of([(0, 0), (1, 0), (2, 0), (0, 1)]), transfers.PreviousTask()
    (selection,) = transfer.select(base, 2, [2], [None])
    assert chosen(base, selection) == [(0, 1)]


def test_transfer_in_has_room_for_the_whole_federation():
    base, transfer = base_of(PAIRS), transfers.PreviousTask()
    selections = transfer.select(base, 1, [0], [None])
    sent = transfer.transfer_in(base, selections, num_clients=3)
    np.testing.assert_array_equal(sent["rows"][sent["keys"][0]], [[3.0, 3.0], [1.0, 1.0]])
    assert sent["count"] == [2]
    with pytest.raises(errors.InputError, match="num_clients should be a whole number"):
        transfer.transfer_in(base, selections, num_clients=0)
