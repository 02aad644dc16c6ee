"""Transfers by rule, against hands and brute force; how often a selection is right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from knowledge import base_of, chosen

from tffcl import errors, streams, transfers
from tffcl.experiment import plan
from tffcl.transfers.options import Selection

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


GRID = [(client, task) for task in range(6) for client in range(4)]


def test_sampled_draws_from_the_past_of_others_again_and_again_the_same():
    base = base_of([(c, t) for t in range(6) for c in range(4)])
    transfer = transfers.Sampled(k=3, seed=7)
    assert transfer.num_foreign(9) == 3
    drawn = transfer.select(base, 5, [0, 1, 2], [None] * 3)
    assert drawn == transfers.Sampled(k=3, seed=7).select(base, 5, [0, 1, 2], [None] * 3)
    assert [drawn[2]] == transfer.select(base, 5, [2], [None])  # whoever else takes part
    assert drawn != transfers.Sampled(k=3, seed=8).select(base, 5, [0, 1, 2], [None] * 3)
    for client, selection in enumerate(drawn):
        assert len(set(selection)) == 3
        assert all(c != client and t < 5 for c, t in chosen(base, selection))
    assert len(set(map(tuple, drawn))) == 3
    assert [len(s) for s in transfer.select(base, 0, [0, 1], [None] * 2)] == [0, 0]


def test_sampled_draws_every_entry_equally_often():
    base = base_of([(c, 0) for c in range(5)])
    counts = np.zeros(5)
    for seed in range(600):
        (selection,) = transfers.Sampled(k=2, seed=seed).select(base, 1, [0], [None])
        counts[selection] += 1
    assert counts[0] == 0
    assert np.abs(counts[1:] - 300).max() < 5 * np.sqrt(600 * 0.25)


def test_sampled_with_the_clients_own():
    base = base_of([(0, 0), (1, 0)])
    (selection,) = transfers.Sampled(k=2, include_own=True).select(base, 1, [0], [None])
    assert sorted(chosen(base, selection)) == [(0, 0), (1, 0)]


def test_own_tasks_are_drawn_from_those_of_the_client_alone():
    base, drawn = base_of(GRID), set()
    for seed in range(40):
        (selection,) = transfers.OwnTasks(k=2, seed=seed).select(base, 4, [2], [None])
        assert len(set(selection)) == 2
        drawn |= set(chosen(base, selection))
    assert drawn == {(2, 0), (2, 1), (2, 2), (2, 3)}
    (selection,) = transfers.OwnTasks(k=3).select(base, 1, [2], [None])
    assert chosen(base, selection) == [(2, 0)]
    assert transfers.OwnTasks(k=3).num_foreign(9) == 3


def test_the_oracle_by_hand():
    tasks = [["ab", "cd", "a"], ["bx", "ab", "a"], ["zc", "y", "a"]]
    base = base_of([(client, task) for task in range(2) for client in range(3)])
    oracle = transfers.Oracle(2, tasks)
    (selection,) = oracle.select(base, 1, [1], [None])  # "ab"; "bx" is the client's own
    assert chosen(base, selection) == [(0, 0)]
    (selection,) = oracle.select(base, 1, [0], [None])  # "cd"
    assert chosen(base, selection) == [(2, 0)]
    (selection,) = transfers.Oracle(2, tasks, include_own=True).select(base, 1, [1], [None])
    assert chosen(base, selection) == [(0, 0), (1, 0)]
    assert oracle.select(base, 1, [2], [None]) == [[]]  # "y": with nothing in common nothing is chosen
    assert oracle.num_foreign(9) == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_oracle_chooses_what_has_most_in_common_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    tasks = [[rng.choice(8, 3, replace=False).tolist() for _ in range(6)] for _ in range(4)]
    base = base_of(GRID)
    for client in range(4):
        (selection,) = transfers.Oracle(3, tasks, seed).select(base, 5, [client], [None])
        others = [(c, t) for c, t in GRID if c != client and t < 5]
        common = sorted((len({*tasks[client][5]} & {*tasks[c][t]}) for c, t in others), reverse=True)
        found = [len({*tasks[client][5]} & {*tasks[c][t]}) for c, t in chosen(base, selection)]
        assert found == [n for n in common[:3] if n]
        assert all(c != client and t < 5 for c, t in chosen(base, selection))


def test_the_oracle_draws_equals_equally_often():
    base, counts = base_of([(c, 0) for c in range(5)]), np.zeros(5)
    tasks = [["a", "a"], ["a"], ["b"], ["a"], ["a"]]
    for seed in range(600):
        (selection,) = transfers.Oracle(1, tasks, seed).select(base, 1, [0], [None])
        counts[selection] += 1
    assert (counts[0], counts[2]) == (0, 0)
    assert np.abs(counts[[1, 3, 4]] - 200).max() < 5 * np.sqrt(600 * 2 / 9)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: transfers.Sampled(k=0), "k must be a whole number, 1 or more; got 0"),
        (lambda: transfers.Sampled(k=2, seed=-1), "seed must be"),
        (lambda: transfers.OwnTasks(k=1.5), "k must be"),
        (lambda: transfers.Oracle(0, []), "k must be"),
    ],
)
def test_wrong_arguments_of_a_control_are_one_clear_error(build, message):
    with pytest.raises(errors.InputError, match=message):
        build()


# -- the flags ------------------------------------------------------------------------------------------------

LABELS = [[("s/a", "s/b"), ("r/a",)], [("r/a", "r/c"), ("s/c",)]]


def of(selection, **options):
    return Selection(selection, top_k=2, **options).transfer(2, 7, labels=LABELS)


def test_oracles_are_told_labels_or_sets_of_the_plan():
    base = base_of([(0, 0), (1, 0)])
    labels, domain = of("labels"), of("domain")
    assert labels.select(base, 1, [0, 1], [None, None]) == [[1], []]
    assert domain.select(base, 1, [0, 1], [None, None]) == [[1], [0]]
    assert (labels.k, domain.k, labels.seed) == (2, 2, 7)
    assert not labels.needs_summaries
    with pytest.raises(errors.StreamError, match="found 'x'"):
        Selection("domain").transfer(1, 1, labels=[[("x",)]])
    assert streams.domains_of(("s/a", "r/a/b")) == ["s", "r"]


def test_flags_reach_the_transfer():
    sit = of("sit", similarity="mmd", include_own=True)
    assert (sit.similarity, sit.include_own, sit.k) == ("mmd", True, 2)
    assert (of("sit").similarity, of("sit").include_own) == ("mean_cosine", False)
    for selection in ("previous", "sampled", "labels", "domain"):
        assert of(selection, include_own=True).include_own
        assert not of(selection).include_own
    assert type(of("own")) is transfers.OwnTasks
    assert type(of("own", foreign="zeros")) is transfers.Zeroed


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"selection": "sampled", "similarity": "mmd"}, "similarity: is for --selection sit"),
        ({"selection": "sit", "similarity": "cosine"}, "similarity: "),
        ({"selection": "own", "include_own": True}, "include_own: has no meaning for --selection own"),
        ({"selection": "all", "include_own": True}, "include_own: has no meaning for --selection all"),
    ],
)
def test_flags_that_do_not_go_together(given, message):
    with pytest.raises(errors.InputError, match=message):
        Selection(**given)


# -- how often a selection is right ---------------------------------------------------------------------------

THREE = [[("s/a", "s/b"), ("r/a", "r/b")], [("r/a", "r/c"), ("s/c", "s/d")], [("r/c", "r/d"), ("r/b", "r/c")]]
ENTRIES = [(0, 0), (2, 0), (1, 0)]


def test_shares_of_selections_by_hand():
    # Client 0 in task 1 (r/a, r/b): entry 1 is of its set alone, entry 2 has a label in common; both of set r.
    # Client 1 (s/c, s/d): entry 0 is of its set alone, 1 of another. Client 2 is given nothing.
    found = transfers.selection_shares(THREE, ENTRIES, [[[], [], []], [[1, 2], [0, 1], []]])
    assert found == {"selection_same_domain": pytest.approx(0.75), "selection_label_overlap": pytest.approx(0.25)}
    assert set(transfers.selection_shares(THREE, [], [[[], [], []]]).values()) == {None}


@pytest.mark.parametrize(
    ("scenario", "num_foreign", "told"), [("mixed", 2, True), ("mixed", 0, False), ("non-iid", 2, False)]
)
def test_only_mixed_runs_with_foreign_entries_tell_shares(scenario, num_foreign, told):
    run = SimpleNamespace(
        experiment=SimpleNamespace(scenario=scenario),
        method=SimpleNamespace(schedule="fedseit", own_network=False, pool="none"),
        stream=SimpleNamespace(named_labels=lambda names: THREE),
        dataset=SimpleNamespace(label_names=()),
        incremental=False,
    )
    process = SimpleNamespace(num_foreign=num_foreign, work=None)
    state = SimpleNamespace(base=SimpleNamespace(entries=ENTRIES), selections=[[[], [], []], [[1], [], []]])
    more = plan.Plan._finish(run, process, state, None, SimpleNamespace(scores_by_task=None))
    assert ("selection_same_domain" in more) == ("selection_label_overlap" in more) == told
