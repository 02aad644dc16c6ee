"""Parts that do not fit together: one ContractError that names the part, the expected and the found."""

from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.templates import ClientWork, ContinualProcess, FinalizerProcess, compose_continual_process
from tffcl.templates.messages import at_clients, at_server, entries


def floats(*shape):
    return tff.TensorType(np.float32, shape)


class CountingWork(ClientWork):
    """A client that adds the sum of its numbers to the shared value."""

    state_type = OrderedDict(key=tff.TensorType(np.int32, [2]), total=floats(2), past=floats(None, 2))
    train_reads, train_writes, prepare_reads = ("total",), ("total",), ("key",)
    evaluate_type = OrderedDict(total=floats(2))
    context_type = OrderedDict()
    example_type = prepared_type = OrderedDict(x=floats(None, 2))
    shared_type = floats(2)
    knowledge_size, num_foreign = 2, 1

    def initialize_shared(self):
        return tf.zeros([2])

    def initialize_client(self, shared, plan, key):
        return {"key": key, "total": tf.zeros([2]), "past": tf.zeros([0, 2])}

    def begin_task(self, state, shared, foreign):
        return dict(state, total=tf.reduce_sum(foreign, 0))

    def train(self, state, shared, data, round_num):
        total = state["total"] + tf.reduce_sum(data["train"]["x"], 0)
        return {"total": total}, {"delta": total}, tf.constant(1.0), {"round": round_num}

    def end_task(self, state, shared, data):
        return dict(state, past=tf.concat([state["past"], state["total"][None]], 0)), {"knowledge": state["total"]}

    def evaluate(self, view, shared, context, examples):
        return {"count": tf.shape(examples["x"])[0]}

    def task_view(self, state, task):
        return OrderedDict(total=state["total"])


def finalizer(shared=None, aggregate=None):
    shared, aggregate = shared or floats(2), aggregate or OrderedDict(delta=floats(2))

    @tff.federated_computation
    def initialize():
        return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(at_server(()), at_server(shared), at_server(aggregate))
    def next_fn(state, value, _):
        measured = tff.federated_zip(OrderedDict(norm=tff.federated_value(np.float32(3.5), tff.SERVER)))
        return tff.templates.MeasuredProcessOutput(state, value, measured)

    return FinalizerProcess(initialize, next_fn)


def compose(work=None, aggregator=None, final=None):
    return compose_continual_process(
        work or CountingWork(), aggregator or tff.aggregators.MeanFactory(), final or finalizer()
    )


@pytest.fixture(name="process", scope="module")
def _process():
    return compose()


def test_types_of_the_docstring(process):
    server = process.initialize.type_signature.result
    state, key = at_clients(CountingWork.state_type), at_clients(tff.TensorType(np.int32, [2]))
    incoming = OrderedDict(
        rows=at_server(floats(None, 2)), keys=at_clients(tff.TensorType(np.int32, [1])), count=at_clients(np.int32)
    )
    examples = OrderedDict(x=floats(None, 2))
    data = at_clients(OrderedDict(context=OrderedDict(), train=examples, validation=examples))
    total = at_clients(OrderedDict(total=floats(2)))

    def check(computation, parameters, result):
        signature = computation.type_signature
        assert [kind for _, kind in tff.structure.iter_elements(signature.parameter)] == list(
            map(tff.to_type, parameters)
        )
        assert signature.result == tff.to_type(result)

    assert server.placement is tff.SERVER
    check(process.initialize_clients, [server, key], state)
    check(process.begin_task, [server, state, incoming], state)
    raw = at_clients(OrderedDict(context=OrderedDict(), examples=examples))
    only_key = at_clients(OrderedDict(key=tff.TensorType(np.int32, [2])))
    check(process.prepare, [server, only_key, incoming, raw], at_clients(examples))
    metrics = at_clients(OrderedDict(round=np.int32, refused=np.str_))
    of_mean = OrderedDict(mean_value=(), mean_weight=())
    measured = at_server(OrderedDict(aggregator=of_mean, finalizer=OrderedDict(norm=np.float32)))
    check(process.next, [server, total, data], (server, total, metrics, measured))
    upload = at_clients(OrderedDict(knowledge=floats(2), refused=np.str_))
    check(process.end_task, [server, state, data], (state, upload))
    check(process.evaluate, [server, total, raw], at_clients(OrderedDict(count=np.int32)))
    assert process.client_state_type == state.member
    assert (process.knowledge_size, process.num_foreign, process.max_classes) == (2, 1, None)
    assert list(entries(server)) == ["shared", "plan", "aggregator", "finalizer", "round_num"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"work": object()}, "client work: expected a ClientWork, found object"),
        ({"aggregator": "mean"}, "aggregator: expected a tff.aggregators factory, found str"),
        ({"final": tff.aggregators.MeanFactory()}, "finalizer: expected a FinalizerProcess, found MeanFactory"),
        ({"final": finalizer(aggregate=floats(2))}, "finalizer: takes aggregates of .*the aggregator gives"),
        (
            {"final": finalizer(shared=floats(3))},
            r"finalizer: takes a shared value of float32\[3\]@SERVER.*float32\[2\]",
        ),
        (
            {
                "aggregator": tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 2, 1.0),
                "work": "no floats",
            },
            "aggregator: DifferentiallyPrivateFactory takes no updates of",
        ),
    ],
)
def test_parts_of_the_wrong_kind(parts, message):
    if parts.get("work") == "no floats":
        parts = {**parts, "work": Changed(train=lambda old: (old[0], {"sent": tf.constant(True)}, *old[2:]))}
    with pytest.raises(errors.ContractError, match=message):
        compose(**parts)


class Changed(CountingWork):
    """The work with one method's answer passed through a function, or an attribute replaced."""

    def __init__(self, **changes):
        for name, change in changes.items():
            setattr(self, name, self._through(name, change) if callable(change) else change)

    def _through(self, name, change):
        return lambda *args: change(getattr(CountingWork, name)(self, *args))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_reads": ("totl",)}, "no state entry named 'totl'; there are .*'key', 'total', 'past'"),
        ({"train_writes": ("base",)}, "no state entry named 'base'"),
        ({"prepare_reads": ("kye",)}, "no state entry named 'kye'"),
        ({"train": lambda r: ({}, *r[1:])}, "train returned no entry named 'total'"),
        (
            {"train": lambda r: ({**r[0], "extra": 1}, *r[1:])},
            "train returned an entry named 'extra', which would be lost",
        ),
        (
            {"train": lambda r: ({"total": tf.zeros([3])}, *r[1:])},
            r"entry 'total' should be float32\[2\], found float32\(3,\)",
        ),
        ({"train": lambda r: (*r[:2], tf.constant(1), r[3])}, "train, entry 'weight' should be float32, found int32"),
        (
            {"train": lambda r: (*r[:3], {"refused": tf.constant("")})},
            "train reports a metric 'refused', which is the server's to say",
        ),
        ({"initialize_shared": lambda r: tf.zeros([5])}, r"entry 'shared' should be float32\[2\]"),
        ({"initialize_client": lambda r: {}}, "initialize_client returned no entry named 'key'"),
        (
            {"begin_task": lambda r: dict(r, total=tf.constant([1, 2]))},
            "begin_task, entry 'total' should be .* found int32",
        ),
        ({"prepare": lambda r: {}}, "prepare returned no entry named 'x'"),
        ({"end_task": lambda r: (r[0], {})}, "end_task uploaded no 'knowledge'"),
        ({"end_task": lambda r: (r[0], {"knowledge": tf.zeros([3])})}, r"entry 'knowledge' should be float32\[2\]"),
    ],
)
def test_a_client_work_that_breaks_its_word(changes, message):
    with pytest.raises(errors.ContractError, match=message):
        compose(Changed(**changes))


def test_finalizer_of_another_form():
    @tff.federated_computation
    def initialize():
        return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(at_server(()), at_server(floats(2)))
    def two(state, value):
        return tff.templates.MeasuredProcessOutput(state, value, tff.federated_value((), tff.SERVER))

    @tff.federated_computation(at_server(()), at_server(floats(2)), at_server(floats(3)))
    def other(state, value, aggregate):
        del value
        return tff.templates.MeasuredProcessOutput(state, aggregate, tff.federated_value((), tff.SERVER))

    @tff.federated_computation(at_server(()), at_server(floats(2)), at_server(floats(2)))
    def nowhere(state, value, aggregate):
        del aggregate
        return tff.templates.MeasuredProcessOutput(state, value, ())

    with pytest.raises(errors.ContractError, match="measurements should be at the server, found <>"):
        FinalizerProcess(initialize, nowhere)
    with pytest.raises(errors.ContractError, match=r"\(state, shared, aggregate\), found 2 arguments"):
        FinalizerProcess(initialize, two)
    with pytest.raises(
        errors.ContractError, match=r"should return float32\[2\]@SERVER as it took it, found float32\[3\]"
    ):
        FinalizerProcess(initialize, other)


class HandedWork(CountingWork):
    """Begins a task with what the finalizer keeps under the name `total`."""

    handed = ("total",)

    def begin_task(self, state, shared, foreign):
        return dict(state)


def keeping(kind=None, ended=None):
    """A finalizer that keeps `total`, and doubles what it keeps when a task ends, if all classes were seen."""
    kept = OrderedDict(total=kind or floats(2))

    @tff.tensorflow.computation
    def ones():
        return OrderedDict((name, tf.ones(of.shape)) for name, of in kept.items())

    @tff.tensorflow.computation(tff.to_type(kept), tff.TensorType(np.bool_, [3]))
    def double(state, seen):
        return OrderedDict(total=state["total"] * tf.where(tf.reduce_all(seen), 2.0, 1.0))

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(ones, tff.SERVER)

    @tff.federated_computation(at_server(kept), at_server(floats(2)), at_server(OrderedDict(delta=floats(2))))
    def next_fn(state, value, _):
        return tff.templates.MeasuredProcessOutput(state, value, tff.federated_value((), tff.SERVER))

    @tff.federated_computation(at_server(kept), at_server(floats(2)), at_server(tff.TensorType(np.bool_, [3])))
    def end_task(state, shared, seen):
        del shared
        return tff.federated_map(double, (state, seen)), tff.federated_value(np.float32(7), tff.SERVER)

    return FinalizerProcess(initialize, next_fn, ended or end_task)


def test_what_the_server_makes_when_a_task_has_ended_begins_the_next_one():
    process = compose(HandedWork(), final=keeping())
    assert process.handed == ("total",)
    server = process.initialize()
    states = process.initialize_clients(server, [np.array([1, 2], np.int32)] * 2)
    incoming = OrderedDict(rows=np.zeros([1, 2], np.float32), keys=[np.zeros(1, np.int32)] * 2, count=[np.int32(0)] * 2)
    for seen, wanted in (([True, False, True], 1.0), ([True] * 3, 2.0)):
        server, measured = process.consolidate(server, np.array(seen))
        assert measured == 7
        assert set(server) == {"shared", "plan", "aggregator", "finalizer", "round_num"}
        for state in process.begin_task(server, states, incoming):
            np.testing.assert_array_equal(state["total"], [wanted, wanted])
    assert compose().consolidate is None


def test_a_finalizer_that_does_not_keep_what_is_handed_is_refused():
    for final in (finalizer(), keeping(floats(3))):
        with pytest.raises(
            errors.ContractError, match=r"finalizer: its state should hold 'total', float32\[2\], found"
        ):
            compose(HandedWork(), final=final)


def test_the_end_of_a_task_takes_and_returns_the_finalizers_state():
    with pytest.raises(errors.ContractError, match="finalizer: end_task should take and return"):
        keeping(ended=keeping(floats(3)).end_task)


def test_computations_of_another_process_do_not_fit(process):
    class Wider(CountingWork):
        state_type = OrderedDict(CountingWork.state_type, more=floats(1))

        def initialize_client(self, shared, plan, key):
            return dict(super().initialize_client(shared, plan, key), more=tf.zeros([1]))

    other = compose(Wider())
    kept = {name: getattr(process, name) for name in ContinualProcess.__dataclass_fields__}
    with pytest.raises(errors.ContractError, match="begin_task: argument client_states, entry 'more'"):
        ContinualProcess(**{**kept, "begin_task": other.begin_task})
    with pytest.raises(errors.ContractError, match="end_task: argument client_states, entry 'more'"):
        ContinualProcess(**{**kept, "end_task": other.end_task})


def one_round(process):
    """What is reported of two clients, with three examples each, all of whose numbers are 1."""
    server, x = process.initialize(), OrderedDict(x=np.ones([3, 2], np.float32))
    data = [OrderedDict(context=OrderedDict(), train=x, validation=x)] * 2
    states = [OrderedDict(total=np.zeros(2, np.float32))] * 2
    return process.next(server, states, data)[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, b""),
        ({"largest_value": 2.5}, b"delta: values should be finite, 2.5 at most"),
        ({"limits": lambda _: {"weight": tf.constant(0.5)}}, b"weight: should be 0 to 0.5, found 1"),
        ({"faults": lambda _: [(tf.constant(False), "no"), (tf.constant(True), "too round")]}, b"too round"),
        ({"train": lambda r: (*r[:2], tf.constant(3.0), r[3])}, b""),
        ({"train": lambda r: (*r[:2], tf.constant(3.5), r[3])}, b"weight: should be 0 to 3, found 3.5"),
    ],
)
def test_a_client_work_says_what_the_server_takes(changes, reason, tff_context):
    assert [told["refused"] for told in one_round(compose(Changed(**changes)))] == [reason] * 2


def test_it_runs(process, tff_context):
    server = process.initialize()
    keys = [np.array([1, 2], np.int32), np.array([3, 4], np.int32)]
    incoming = OrderedDict(
        rows=np.array([[1, 2], [3, 4]], np.float32), keys=[np.array([1], np.int32)] * 2, count=[1, 0]
    )
    states = process.begin_task(server, process.initialize_clients(server, keys), incoming)
    np.testing.assert_array_equal([s["total"] for s in states], [[3, 4], [0, 0]])
    x = OrderedDict(x=np.ones([3, 2], np.float32))
    data = [OrderedDict(context=OrderedDict(), train=x, validation=x)] * 2
    totals = [OrderedDict(total=s["total"]) for s in states]
    server, changes, metrics, measured = process.next(server, totals, data)
    np.testing.assert_array_equal([c["total"] for c in changes], [[6, 7], [3, 3]])
    assert [m["round"] for m in metrics] == [0, 0]
    assert server["round_num"] == 1
    assert measured["finalizer"] == {"norm": np.float32(3.5)}
