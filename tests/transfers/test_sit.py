from __future__ import annotations

import logging
import subprocess
import sys
import time

import numpy as np
import pytest

from tffcl import errors, transfers
from tffcl.transfers import options, sit
from tffcl.transfers import similarity as measures

MEASURES = ("mean_cosine", "centred_cosine", "best_match", "mmd")
EVERY = pytest.mark.parametrize("measure", MEASURES)
D, K = 4, 4  # wherever they do not matter: one computation for each measure then serves all tests


def unit(rows: np.ndarray) -> np.ndarray:
    return np.array([r / np.linalg.norm(r) for r in rows.astype(np.float64)])


def cosines(first, second) -> np.ndarray:
    return np.array([[np.dot(a, b) for b in unit(second)] for a in unit(first)])


def squares(first, second) -> np.ndarray:
    return ((first[:, None] - second[None]) ** 2).sum(axis=2)


def score(measure: str, query, entry, everything) -> float:
    """Similarity of two tasks, from its definition; `everything` is all centroids of all tasks."""
    query, entry, everything = (np.asarray(x, np.float64) for x in (query, entry, everything))
    if measure == "mean_cosine":
        return cosines(query, entry).mean()
    if measure == "centred_cosine":
        common = everything.mean(axis=0)
        query, entry = query - common, entry - common
        own = cosines(query, query).mean() * cosines(entry, entry).mean()
        return cosines(query, entry).mean() / np.sqrt(own)
    if measure == "best_match":
        pairs = cosines(query, entry)
        return (pairs.max(axis=1).mean() + pairs.max(axis=0).mean()) / 2
    width = squares(everything, everything).mean()

    def kernel(first, second) -> float:
        return np.exp(-squares(first, second) / width).mean()

    return 2 * kernel(query, entry) - kernel(query, query) - kernel(entry, entry)


def filled(rng, clients: int, tasks: int, dimension: int = D) -> transfers.KnowledgeBase:
    """Entries in an order that is not that of (client, task), with one to five centroids each."""
    base = transfers.KnowledgeBase(3)
    pairs = [(c, t) for c in range(clients) for t in range(tasks)]
    for place in rng.permutation(len(pairs)):
        centroids = rng.normal(size=[rng.integers(1, 6), dimension]) + 1.0
        base.add(*pairs[place], rng.normal(size=3), {"centroids": centroids.astype(np.float32)})
    return base


def summaries_of(rng, number: int, dimension: int = D) -> list:
    return [
        {"centroids": (rng.normal(size=[rng.integers(1, 6), dimension]) + 1.0).astype(np.float32)}
        for _ in range(number)
    ]


def brute_force(measure, base, task, clients, summaries, k, include_own=False) -> list[list[int]]:
    past = [i for i, (_, t) in enumerate(base.entries) if t < task]
    told = [base.summary(i)["centroids"] for i in past]
    everything = np.concatenate([*told, *(s["centroids"] for s in summaries)])
    chosen = []
    for client, summary in zip(clients, summaries):
        scored = [
            (-score(measure, summary["centroids"], rows, everything), *base.entries[entry], entry)
            for entry, rows in zip(past, told)
            if include_own or base.entries[entry][0] != client
        ]
        chosen.append([entry for *_, entry in sorted(scored)][:k])
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "include_own"), [*((measure, False) for measure in MEASURES), ("mean_cosine", True)]
)
@pytest.mark.usefixtures("tff_context")
def test_selects_what_brute_force_selects(measure, include_own):
    rng = np.random.default_rng(3)
    transfer = transfers.SIT(k=K, similarity=measure, include_own=include_own)
    for clients, tasks in ((2, 1), (4, 3), (3, 5)):
        base = filled(rng, clients, tasks + 1)
        taking_part = [int(c) for c in rng.permutation(clients)]
        summaries = summaries_of(rng, clients)
        found = transfer.select(base, tasks, taking_part, summaries)
        assert found == brute_force(measure, base, tasks, taking_part, summaries, K, include_own)
    assert transfer.num_foreign(7) == K


@EVERY
@pytest.mark.usefixtures("tff_context")
def test_scores_are_those_of_brute_force(measure):
    rng = np.random.default_rng(4)
    told = [rng.normal(size=[n, D]).astype(np.float32) + 0.5 for n in (2, 1, 4)]
    queries = [rng.normal(size=[n, D]).astype(np.float32) + 0.5 for n in (3, 1)]
    decision = transfers.build_sit_decision(D, K, measure, False)
    entries = {
        "rows": np.concatenate(told),
        "sizes": np.array([2, 1, 4], np.int32),
        "client": np.array([0, 1, 1], np.int32),
    }
    asked = [{"rows": q, "client": np.int32(c)} for q, c in zip(queries, (9, 1))]
    decided = decision(entries, asked)
    everything = np.concatenate([*told, *queries])
    assert decided["client"].tolist() == [9, 1]
    assert decided["count"].tolist() == [3, 1]
    for row, query in enumerate(queries):
        for place in range(decided["count"][row]):
            expected = score(measure, query, told[decided["chosen"][row][place]], everything)
            assert decided["scores"][row][place] == pytest.approx(expected, abs=1e-6)
    assert decided["chosen"][1].tolist() == [0, -1, -1, -1]
    assert np.isneginf(decided["scores"][1][1:]).all()


@EVERY
@pytest.mark.usefixtures("tff_context")
def test_ties_go_by_client_and_task(measure):
    rng = np.random.default_rng(5)
    same = rng.normal(size=[3, D]).astype(np.float32)
    base = transfers.KnowledgeBase(1)
    for pair in [(3, 0), (2, 1), (1, 1), (2, 0), (1, 0)]:
        base.add(*pair, np.ones(1), {"centroids": same})
    base.add(4, 0, np.ones(1), {"centroids": -same})
    (found,) = transfers.SIT(k=K, similarity=measure).select(base, 2, [0], [{"centroids": same}])
    assert [base.entries[entry] for entry in found] == [(1, 0), (1, 1), (2, 0), (2, 1)]


@pytest.mark.usefixtures("tff_context")
def test_own_tasks_and_the_present_task_are_left_out():
    rows = np.eye(2, D, dtype=np.float32)
    base = transfers.KnowledgeBase(1)
    for pair in [(0, 0), (1, 0), (1, 1)]:
        base.add(*pair, np.ones(1), {"centroids": rows})
    query = [{"centroids": rows}]
    assert transfers.SIT(k=K).select(base, 1, [0], query) == [[1]]
    assert transfers.SIT(k=K, include_own=True).select(base, 1, [0], query) == [[0, 1]]
    assert transfers.SIT(k=K).select(base, 0, [0], query) == [[]]


def near_duplicate_and_tight_task(rng, dimension: int = D):
    """A task of several subjects, its near-duplicate, one tight around the common mean, another one."""
    common = 3.0 * np.ones(dimension)
    subjects = common + 2.0 * rng.normal(size=[6, dimension])
    query = subjects + 0.1 * rng.normal(size=subjects.shape)
    duplicate = subjects + 0.1 * rng.normal(size=subjects.shape)
    tight = common + 0.05 * rng.normal(size=[6, dimension])
    other = common + 2.0 * rng.normal(size=[6, dimension])
    return [rows.astype(np.float32) for rows in (query, duplicate, tight, other)]


@pytest.mark.usefixtures("tff_context")
def test_near_duplicates_rank_first_unless_tightness_is_what_is_measured():
    first = dict.fromkeys(MEASURES, 0)
    for seed in range(5):
        query, duplicate, tight, other = near_duplicate_and_tight_task(np.random.default_rng(seed))
        base = transfers.KnowledgeBase(1)
        for client, rows in enumerate((tight, other, duplicate), start=1):
            base.add(client, 0, np.ones(1), {"centroids": rows})
        for measure in MEASURES:
            (found,) = transfers.SIT(k=K, similarity=measure).select(base, 1, [0], [{"centroids": query}])
            assert sorted(found) == [0, 1, 2]
            first[measure] += found[0] == 2
    assert first["centred_cosine"] == first["best_match"] == first["mmd"] == 5
    assert first["mean_cosine"] < 5  # the paper's measure prefers the tight task


@EVERY
@pytest.mark.usefixtures("tff_context")
def test_an_entry_or_query_of_zeros_is_never_similar(measure):
    zeros, rows = np.zeros([2, D], np.float32), np.array([[1, 2, 0, 0], [-2, 1, 0, 0]], np.float32)
    base = transfers.KnowledgeBase(1)
    base.add(1, 0, np.ones(1), {"centroids": zeros})
    base.add(2, 0, np.ones(1), {"centroids": rows})
    told = [{"centroids": np.concatenate([rows, zeros])}, {"centroids": zeros}]
    assert transfers.SIT(k=K, similarity=measure).select(base, 1, [0, 3], told) == [[1], []]


@pytest.mark.usefixtures("tff_context")
def test_a_client_that_says_nothing_gets_nothing_and_that_is_told(caplog):
    rows = np.eye(2, D, dtype=np.float32)
    base = transfers.KnowledgeBase(1)
    base.add(1, 0, np.ones(1), {"centroids": rows})
    base.add(2, 0, np.ones(1), None)
    with caplog.at_level(logging.WARNING, logger=sit.logger.name):
        found = transfers.SIT(k=K).select(base, 1, [0, 3], [{"centroids": rows}, None])
    assert found == [[0], []]
    assert "clients [3] have no cluster of 2 different documents in task 1" in caplog.text
    assert "(2, 0)" in caplog.text


def test_nobody_says_anything():
    base = transfers.KnowledgeBase(1)
    base.add(1, 0, np.ones(1), None)
    assert transfers.SIT().select(base, 1, [0, 1], [None, None]) == [[], []]


def test_summaries():
    transfer = transfers.SIT(q=4)
    assert transfer.needs_summaries
    rows = np.random.default_rng(0).normal(size=[50, 3]).astype(np.float32)
    told = transfer.summarise(rows, seed=[1, 2])
    assert list(told) == ["centroids"]
    assert told["centroids"].shape[1] == 3
    assert transfer.summarise(rows[:1], seed=0) is None


@pytest.mark.usefixtures("tff_context")
def test_one_computation_serves_any_number_of_entries_and_clients(monkeypatch):
    rng = np.random.default_rng(6)
    traces = []
    decide = measures._decide
    monkeypatch.setattr(measures, "_decide", lambda *a: traces.append(1) or decide(*a))
    transfer = transfers.SIT(k=7, similarity="centred_cosine")
    for clients, tasks in ((1, 1), (2, 1), (5, 3), (3, 4)):
        base = filled(rng, clients, tasks)
        transfer.select(base, tasks, list(range(clients)), summaries_of(rng, clients))
    assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["best_match", "mmd"])
@pytest.mark.usefixtures("tff_context")
def test_time_grows_with_the_number_of_entries_and_no_faster(measure):
    """By what looks at all pairs of centroids; the other measures multiply one vector of each task."""
    rng = np.random.default_rng(7)
    base, larger = transfers.KnowledgeBase(1), transfers.KnowledgeBase(1)
    for number in range(2000):
        rows = rng.normal(size=[30, 100]).astype(np.float32)
        for each in (base, larger) if number < 400 else (larger,):
            each.add(number // 20, number % 20, np.ones(1), {"centroids": rows})
    told = [{"centroids": rng.normal(size=[30, 100]).astype(np.float32)} for _ in range(3)]
    transfer = transfers.SIT(k=5, similarity=measure)

    def seconds(entries):
        begin = time.perf_counter()
        found = transfer.select(entries, 20, [0, 1, 2], told)
        assert [len(selection) for selection in found] == [5, 5, 5]
        return time.perf_counter() - begin

    seconds(base), seconds(larger)  # compiles
    few, many = [], []
    for _ in range(10):  # the machine may be busy with something else
        few.append(seconds(base))
        many.append(seconds(larger))
        if min(many) < 10 * min(few):  # five times as many; each with each would be 25
            return
    pytest.fail(f"400 entries in {min(few):.3f} s, 2,000 in {min(many):.3f} s")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be a whole number, 1 or more; got 0"),
        ({"q": 1.5}, "q must be"),
        ({"min_cluster_size": 0}, "min_cluster_size must be"),
        ({"clustering": "KNN"}, "clustering: expected one of kmeans, kmedoids, gmm, found 'KNN'"),
        ({"similarity": "cosine"}, "similarity: expected one of mean_cosine, centred_cosine, best_match, mmd"),
    ],
)
def test_wrong_arguments_are_one_clear_error(arguments, message):
    with pytest.raises(errors.InputError, match=message):
        transfers.SIT(**arguments)


@pytest.mark.parametrize(
    ("summary", "message"),
    [
        ({"centroids": np.ones([2, 3], np.float32)}, r"one dimension, found \[2, 3\]"),
        ({"centres": np.ones([2, 2], np.float32)}, "should hold `centroids`"),
        ({"centroids": np.full([2, 2], np.nan, np.float32)}, "finite"),
    ],
)
def test_wrong_summaries_are_one_clear_error(summary, message):
    base = transfers.KnowledgeBase(1)
    base.add(1, 0, np.ones(1), {"centroids": np.eye(2, dtype=np.float32)})
    with pytest.raises(errors.InputError, match=message):
        transfers.SIT().select(base, 1, [0], [summary])


def test_every_measure_has_a_name_that_can_be_asked_for():
    assert tuple(measures.SIMILARITIES) == options.SIMILARITIES


def test_choices_that_show_single_documents_say_so(caplog):
    with caplog.at_level(logging.WARNING, logger=sit.logger.name):
        transfers.SIT(clustering="kmedoids")
        transfers.SIT(min_cluster_size=1)
    assert "vector of one document" in caplog.text
    assert "min_cluster_size=1" in caplog.text


def test_the_room_is_imported_without_tensorflow():
    code = "import sys, tffcl.transfers; sys.exit('tensorflow' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
