"""Clients that come and go: who takes part, what stays as it is, and what is refused."""

from __future__ import annotations

import math
import types
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
from run_directories import StopError, history, results

from tffcl import metrics
from tffcl.errors import InputError, RunError
from tffcl.program import Released, events, run_program
from tffcl.streams import Enrollment
from tffcl.transfers import NoTransfer, PreviousTask

TABLE = ("*oo", "x**", "**o")  # task 0 has clients 0 and 2, task 1 has 1 and 2, task 2 has 1
GAP = ("*oo", "xx*", "xx*")  # nobody in task 1
LATE = ("x*", "x*")  # nobody in task 0


class Recorder:
    """A reporter that keeps what it is told, and may stop the run."""

    def __init__(self, stop_after=None):
        self.events, self.left = [], stop_after

    def start(self, num_tasks, num_rounds, past):
        pass

    def report(self, event):
        self.events.append(event)
        if len(self.events) == self.left:
            raise StopError

    def close(self):
        pass


class Spy:
    """A process that keeps what its computations take and give, in order: (name, arguments, result)."""

    def __init__(self, process):
        self._process, self.calls = process, []

    def __getattr__(self, name):
        value = getattr(self._process, name)
        return _Spied(name, value, self.calls) if hasattr(value, "type_signature") else value

    def of(self, name):
        return [call for call in self.calls if call[0] == name]


class _Spied:
    def __init__(self, name, computation, calls):
        self.name, self.computation, self.calls = name, computation, calls
        self.type_signature = computation.type_signature

    def __call__(self, *arguments):
        result = self.computation(*arguments)
        self.calls.append((self.name, arguments, result))
        return result


def same(one, other):
    """Whether two structures are equal to the bit."""
    tf.nest.assert_same_structure(one, other)
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other))
    )


@pytest.fixture(scope="module")
def finished(tiny, process):
    spy, recorder = Spy(process), Recorder()
    return spy, recorder, tiny.run_enrolled(spy, TABLE, reporters=[recorder])


def test_who_takes_part(finished):
    spy, recorder, _ = finished
    rounds = [event for event in recorder.events if event["event"] == "round"]
    assert [event["participants"] for event in rounds] == [[0, 2], [0, 2], [1, 2], [1, 2], [1], [1]]
    assert [list(event["loss"]) for event in rounds[2:5]] == [["1", "2"], ["1", "2"], ["1"]]
    for name in ("begin_task", "end_task"):
        assert [len(arguments[1]) for _, arguments, _ in spy.of(name)] == [2, 2, 1]
    assert [len(arguments[2]) for _, arguments, _ in spy.of("next")] == [2, 2, 2, 2, 1, 1]
    assert [len(arguments[3]) for _, arguments, _ in spy.of("prepare")] == [6, 6, 3]


def test_a_client_that_left_is_still_learned_from_and_selects_nothing(finished):
    ends = [event for event in finished[1].events if event["event"] == "task_end"]
    assert [end["selection"] for end in ends] == [
        {"0": [], "1": [], "2": []},
        {"0": [], "1": [[0, 0], [2, 0]], "2": [[0, 0]]},
        {"0": [], "1": [[2, 1]], "2": []},
    ]
    assert [end["bytes_up"]["0"] > 0 for end in ends] == [True, False, False]


def test_scores_stand_where_there_are_test_examples(finished):
    spy, _, made = finished
    known = [[[not math.isnan(one) for one in row] for row in rows] for rows in made.scores]
    assert known == [
        [[True, False, False]] * 3,
        [[False, False, False], [False, True, False], [False, True, True]],
        [[True, False, False], [True, True, False], [True, True, False]],
    ]
    # after every call that changes something, a call with the test examples of all tasks so far
    assert len(spy.of("evaluate")[-1][1][1]) == 5


def test_a_past_task_is_scored_with_what_the_client_had_learned_in_it(finished):
    spy, recorder, made = finished
    learned = {}  # (client, task) -> adaptive at its end
    for task, (_, _, (_, uploads)) in enumerate(spy.of("end_task")):
        for client, upload in zip(Enrollment.from_table(TABLE).active(task), uploads):
            learned[client, task] = upload["knowledge"]
    _, (_, views, _), sums = spy.of("evaluate")[-1]
    order = [(0, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    for (client, task), view, one in zip(order, views, sums):
        assert np.array_equal(view["adaptive"], learned[client, task])
        assert made.scores[client, 2, task] == one["correct"] / one["count"]


def test_averages(finished):
    scores, content = finished[2].scores, finished[2].to_json()
    last = [np.mean([scores[0, 2, 0], scores[2, 2, 0]]), np.mean(scores[1:, 2, 1]), scores[1, 2, 2]]
    assert content["accuracy_by_task"][2] == pytest.approx(last)
    assert content["accuracy_by_task"][0][1] is None
    assert content["average_accuracy_by_task"] == pytest.approx(np.mean(last))
    assert content["task_averaged_test_accuracy"] == pytest.approx(np.nanmean(scores[:, 2]))
    assert content["config"]["enrollment"] == list(TABLE)


def test_bytes_of_those_who_are_there(finished):
    first, _, end, third = finished[1].events[:4]
    assert sorted(first["bytes_up"]) == sorted(first["bytes_down"]) == ["0", "2"]
    assert sorted(third["bytes_down"]) == ["1", "2"]
    assert third["bytes_down"]["1"] == 3 * metrics.dense_bytes(6)  # the shared value, and two entries
    assert end["bytes_up"] == {"0": 24, "1": 0, "2": 24}
    assert [len(row) for row in finished[2].bytes_up] == [6, 6, 6]
    assert finished[2].bytes_up[0][2:] == [0] * 4


@pytest.mark.parametrize("fresh", [True, False])
def test_to_a_newcomer_the_shared_value_is_news(fresh):
    state = types.SimpleNamespace(
        server={"shared": np.ones(6, np.float32)}, fresh=fresh, round=0, task=1, selections=[[], [[], [], []]]
    )
    whole = events.coded_and_dense(6, 6)
    told = whole if fresh else (0, 0)
    assert events.bytes_down(state, [1], [1, 2], [2]) == {1: told, 2: whole}
    state.round = 1
    assert events.bytes_down(state, [1], [1, 2], [2]) == {1: told}


@pytest.mark.slow
def test_everybody_always_is_as_without_an_enrollment(tiny, process, tmp_path):
    everybody = tiny.run(process, tmp_path / "full", enrollment=Enrollment.full(3, 3), clients_per_round=2)
    plain = tiny.run(process, tmp_path / "plain", clients_per_round=2)
    assert history(tmp_path / "full") == history(tmp_path / "plain")
    assert np.array_equal(everybody.scores, plain.scores, equal_nan=True)
    assert "enrollment" not in plain.config


def test_a_sample_of_those_who_are_there(tiny, process):
    recorder = Recorder()
    table = ("***", "xxx", "***")
    tiny.run_enrolled(process, table, clients_per_round=1, num_rounds=5, reporters=[recorder])
    rounds = [event["participants"] for event in recorder.events if event["event"] == "round"]
    assert {tuple(one) for one in rounds} == {(0,), (2,)}


def test_nobody_enrolled(tiny, process, tmp_path):
    spy, recorder = Spy(process), Recorder()
    made = tiny.run_enrolled(spy, GAP, tmp_path, reporters=[recorder])
    told = [(event["event"], event["task"], event.get("participants")) for event in recorder.events[3:6]]
    assert told == [("round", 1, []), ("round", 1, []), ("task_end", 1, None)]
    names = [name for name, _, _ in spy.calls]
    assert names.count("next") == 4
    assert names.count("begin_task") == names.count("prepare") == names.count("end_task") == 2
    # between the last evaluation of task 0 and the start of task 2 nothing is computed, and nothing has changed
    start = [place for place, name in enumerate(names) if name == "begin_task"][1]
    assert names[start - 2 : start] == ["end_task", "evaluate"]
    before, after = spy.calls[start - 1][1][0], spy.calls[start][1][0]
    assert same(before, after)
    scores = made.scores
    assert np.array_equal(scores[:, 1, 0], scores[:, 0, 0], equal_nan=True)
    assert np.isnan(scores[:, :, 1]).all()
    third = recorder.events[6]
    assert third["bytes_down"]["1"] == metrics.dense_bytes(6)  # nobody has told it of the shared value yet
    assert made.to_json()["accuracy_by_task"][2][1] is None
    assert recorder.events[3]["accuracy"]["0"] == [scores[0, 0, 0], None]


def test_nobody_enrolled_at_first(tiny, process, tmp_path):
    made = tiny.run_enrolled(
        process, LATE, tmp_path, num_rounds=1, reporters=None, transfer=PreviousTask(include_own=True)
    )
    assert np.isnan(made.scores[:, 0]).all()
    assert not np.isnan(made.scores[:, 1, 1]).any()
    assert (tmp_path / "metrics.csv").exists()


def test_nobody_ever(tiny, process):
    made = tiny.run_enrolled(process, ("xx", "xx"), transfer=PreviousTask(include_own=True))
    assert np.isnan(made.scores).all()
    assert made.to_json()["average_accuracy_by_task"] is None


@pytest.mark.slow
@pytest.mark.parametrize("table", [TABLE, GAP])
def test_stopped_after_every_event_and_gone_on_with(tiny, process, tmp_path, table):
    options = {"clients_per_round": 1, "num_rounds": 2}
    tiny.run_enrolled(process, table, tmp_path / "straight", **options)
    for _ in range(9):
        with pytest.raises(StopError):
            tiny.run_enrolled(process, table, tmp_path / "run", resume=True, reporters=[Recorder(1)], **options)
    tiny.run_enrolled(process, table, tmp_path / "run", resume=True, **options)
    assert history(tmp_path / "run") == history(tmp_path / "straight")
    assert results(tmp_path / "run") == results(tmp_path / "straight")


def test_another_enrollment_is_another_run(tiny, process, tmp_path):
    with pytest.raises(StopError):
        tiny.run_enrolled(process, TABLE, tmp_path, reporters=[Recorder(4)])
    with pytest.raises(RunError, match=r"enrollment is \['\*oo', 'x\*\*', '\*\*o'\] there and \['\*oo', 'xx\*'"):
        tiny.run_enrolled(process, GAP, tmp_path, resume=True)
    with pytest.raises(RunError, match="there and not set here"):
        tiny.run(process, tmp_path, resume=True)


def test_nothing_is_traced_twice_for_any_number_of_clients_tasks_and_rounds(tiny, tff_context):
    traces = []

    class Counting(tiny.TinyWork):
        def train(self, *args):
            traces.append("train")
            return super().train(*args)

        def evaluate(self, *args):
            traces.append("evaluate")
            return super().evaluate(*args)

    tiny.run_enrolled(tiny.build_process(Counting()), TABLE)
    assert sorted(traces) == ["evaluate", "train"]


@pytest.mark.slow
def test_whatever_else_is_sent_counts(tiny, tff_context):
    class Sending(tiny.TinyWork):
        def train(self, *args):
            changed, update, weight, told = super().train(*args)
            told["extra_bytes"] = 100 * tf.shape(args[2]["train"]["label"])[0]
            return changed, update, weight, told

    recorder = Recorder()
    tiny.run_enrolled(tiny.build_process(Sending()), TABLE, reporters=[recorder])
    first = recorder.events[0]
    assert first["extra_bytes"] == {"0": 1200, "2": 1200}
    assert first["bytes_up"]["0"] == 1200 + metrics.sparse_bytes(5, 6)
    assert first["bytes_up_dense"]["0"] == 1200 + metrics.dense_bytes(6)


def test_a_density_is_the_mixture_of_the_tasks_that_the_client_had(tiny, tff_context):
    """A client's mixture is over its own tasks, its newest is the newest that it had."""

    class Density(tiny.TinyWork):
        def prepare(self, state, foreign, context, examples):
            return super().prepare(state, foreign[:0], context, examples)  # as many for every task

        def evaluate(self, view, shared, context, examples):
            _, loss = self._loss(view["base"] + view["adaptive"], context, examples)
            return {"count": tf.size(loss), "losses": loss}

    spy = Spy(tiny.build_process(Density()))
    made = tiny.run_enrolled(spy, TABLE, evaluate_every="task")
    nll, known = made.scores, made.other_scores["nll_task_known"]
    newest = made.other_scores["nll_newest"]
    assert set(made.to_json()) >= {"nll_by_task", "average_nll_by_task"}
    assert np.array_equal(np.isnan(nll), np.isnan(known))
    assert np.isnan(nll[0, 2]).tolist() == [False, True, True]
    # client 2 had tasks 0 and 1, client 0 only task 0: for it all three are the same
    assert nll[0, 2, 0] == pytest.approx(known[0, 2, 0]) == pytest.approx(newest[0, 2, 0])
    _, (_, views, data), found = spy.of("evaluate")[-1]
    assert len(views) == 1 + 2 + 2
    losses = np.stack([one["losses"] for one in found[3:]]).astype(np.float64)  # client 2: [view, example]
    first, second = losses[:, :7], losses[:, 7:]  # its test sets have seven examples each
    for task, one in enumerate((first, second)):
        mixed = -np.log(np.exp(-one).mean(axis=0)).mean()
        assert nll[2, 2, task] == pytest.approx(mixed)
        assert known[2, 2, task] == pytest.approx(one[task].mean())
        assert newest[2, 2, task] == pytest.approx(one[1].mean())


def test_release_managers_take_a_round_of_nobody():
    class Manager:
        def __init__(self):
            self.released = {}

        async def release(self, value, key):
            self.released[key] = dict(value)

    manager = Manager()
    reporter = Released(manager)
    reporter.start(1, 2, [])
    reporter.report({"event": "round", "task": 0, "round": 0, "participants": [], "accuracy": {"0": [None]}})
    assert manager.released == {1: {}}


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        (("**", "**"), {}, "enrollment 'custom' is for 2 clients x 2 tasks, but the data has 3 clients x 2 tasks"),
        (("*", "*", "*"), {}, "is for 3 clients x 1 tasks, but the data has 3 clients x 2 tasks"),
        (("**", "x*", "**"), {"client_1_task_0": {}}, "client 1, task 0: the client is not yet enrolled, but has 12"),
        (("**", "*o", "**"), {"client_1_task_1": {}}, "task 1: the client is no longer enrolled, but has 12 train"),
        (("**", "**", "**"), {"client_1_task_1": "none"}, "client 1, task 1: no training examples; every client needs"),
    ],
)  # fmt: skip
def test_data_and_enrollment_that_do_not_fit(tiny, process, table, changes, message):
    none = {"train": OrderedDict(x=np.zeros((0, 3), np.float32), label=np.zeros(0, np.int32))}
    changes = {key: none if value == "none" else value for key, value in changes.items()}
    enrollment = Enrollment.from_table(table)
    shape = enrollment if len(table) == 3 and len(table[0]) == 2 else Enrollment.full(3, 2)
    with pytest.raises(InputError, match=message):
        tiny.run(process, data=tiny.EnrolledData(shape, **changes), enrollment=enrollment)


def test_test_examples_of_a_client_that_is_not_there(tiny, process):
    enrollment = Enrollment.from_table(("**", "x*", "**"))
    none = OrderedDict(x=np.zeros((0, 3), np.float32), label=np.zeros(0, np.int32))
    data = tiny.EnrolledData(enrollment, client_1_task_0={"train": none, "validation": none})
    with pytest.raises(InputError, match="client 1, task 0: the client is not yet enrolled, but has 6 test examples"):
        tiny.run(process, data=data, enrollment=enrollment)


def test_a_table_is_no_enrollment(tiny, process):
    with pytest.raises(InputError, match="enrollment must be an Enrollment, found tuple"):
        run_program(process, tiny.TinyData(), NoTransfer(), num_rounds=1, seed=1, enrollment=TABLE, reporters=())
