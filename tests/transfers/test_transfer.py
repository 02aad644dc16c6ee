from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from knowledge import base_of, chosen

from tffcl import errors, transfers

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
    with pytest.raises(errors.InputError, match="num_clients must be a whole number"):
        transfer.transfer_in(base, selections, num_clients=0)


def test_all_past_the_latest_first():
    base, transfer = base_of(PAIRS), transfers.AllPast(max_tasks=4)
    assert transfer.num_foreign(3) == 6
    (selection,) = transfer.select(base, 3, [1], [None])
    assert chosen(base, selection) == [(0, 2), (0, 1), (2, 1), (0, 0), (2, 0)]
    sent = transfer.transfer_in(base, [selection], num_clients=3)
    assert sent["count"] == [5]
    assert sent["keys"][0].shape == (6,)


def test_zeroed_keeps_the_selection_and_its_count():
    base, plain = base_of(PAIRS), transfers.PreviousTask()
    transfer = transfers.Zeroed(plain)
    assert transfer.num_foreign(3) == 2
    selections = transfer.select(base, 2, [0, 1], [None, None])
    assert selections == plain.select(base, 2, [0, 1], [None, None])
    sent, before = (t.transfer_in(base, selections, 3) for t in (transfer, plain))
    assert before["rows"].any()
    np.testing.assert_array_equal(sent["rows"], np.zeros_like(before["rows"]))
    assert list(sent) == list(before)
    assert sent["count"] == before["count"]
    np.testing.assert_array_equal(sent["keys"], before["keys"])


def test_random_task_takes_others_than_those_selected():
    base = base_of([(c, t) for t in range(4) for c in range(3)])
    plain = transfers.PreviousTask()
    transfer = transfers.RandomTask(plain, seed=3)
    replaced = transfer.select(base, 3, [0, 1, 2], [None] * 3)
    assert replaced == transfers.RandomTask(plain, seed=3).select(base, 3, [0, 1, 2], [None] * 3)
    for client, (new, old) in enumerate(zip(replaced, plain.select(base, 3, [0, 1, 2], [None] * 3))):
        assert len(set(new)) == len(old) == 2
        assert not set(new) & set(old)
        assert all(c != client and t < 3 for c, t in chosen(base, new))


def test_random_task_keeps_what_nothing_else_can_replace():
    base = base_of([(0, 0), (1, 0), (2, 0)])
    transfer = transfers.RandomTask(transfers.PreviousTask())
    assert transfer.select(base, 1, [0], [None]) == [[1, 2]]
    (selection,) = transfers.RandomTask(transfers.Sampled(k=1)).select(base, 1, [0], [None])
    (before,) = transfers.Sampled(k=1).select(base, 1, [0], [None])
    assert selection == [3 - before[0]]


def test_ablations_of_sit_still_ask_for_summaries():
    transfer = transfers.Zeroed(transfers.SIT(q=2))
    assert transfer.needs_summaries
    rows = np.random.default_rng(0).normal(size=[9, 2]).astype(np.float32)
    assert transfer.summarise(rows, seed=0)["centroids"].shape[1] == 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: transfers.AllPast(max_tasks=0), "max_tasks must be"),
        (lambda: transfers.RandomTask(transfers.NoTransfer(), seed=0.5), "seed must be"),
    ],
)
def test_wrong_arguments_are_one_clear_error(build, message):
    with pytest.raises(errors.InputError, match=message):
        build()


def test_a_task_s_vectors_are_its_documents_or_its_examples():
    """Without a word of what to summarise: mean word vectors of text, arrays flattened."""
    transfer = transfers.PreviousTask()
    text = SimpleNamespace(
        context={"tokens": np.array([2, 3, 3]), "vectors": np.array([[0, 0], [0, 0], [1, 2], [3, 4]], np.float32)},
        train={"start": np.array([0, 2]), "length": np.array([2, 1]), "label": np.array([0, 1])},
    )
    assert transfer.vectors(text).tolist() == [[2, 3], [3, 4]]
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    arrays = SimpleNamespace(context={"classes": np.ones(2, bool)}, train={"x": images, "label": np.zeros(3, np.int32)})
    found = transfers.Zeroed(transfer).vectors(arrays)
    assert (found.dtype, found.tolist()) == (np.float32, images.reshape(3, 4).tolist())
    with pytest.raises(errors.InputError, match="needs a vector for each example, and these have a, b"):
        transfer.vectors(SimpleNamespace(context={}, train={"a": images, "b": images}))
