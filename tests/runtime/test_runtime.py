"""A program is the same in each runtime: what goes wrong, and how many clients there are where nothing tells it."""

from __future__ import annotations

from collections import OrderedDict

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import aggregators, errors, runtime
from tffcl.runtime.runtime import operation_error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/a/file; No such file or directory\n\t [[{{node ReadFile}}]]", "/a/file; No such file or directory"),
        (
            "Graph execution error:\n\nDetected at node CheckNumerics defined at (most recent call last):\n"
            "<stack traces unavailable>\nnot finite : Tensor had NaN values\n\t [[{{node CheckNumerics}}]]\n\t "
            "[[ReduceDataset]] [Op:__inference_wrapped_function_257]",
            "not finite : Tensor had NaN values",
        ),
        (
            "assertion failed: [too large] [1 [2]]\n\t [[{{function_node f}}{{node Assert}}]]\n\t\nwhile evaluating "
            "local [_a1] in block locals [_a1,_b2]",
            "assertion failed: [too large] [1 [2]]",
        ),
        (
            "2 root error(s) found.\n  (0) INVALID_ARGUMENT: too large\n\t [[{{node A}}]]\n  (1) INVALID_ARGUMENT: too "
            "large\n\t [[{{node A}}]]\n\t [[Func/_4]]\n0 successful operations.\n0 derived errors ignored.",
            "too large",
        ),
    ],
)
def test_the_words_of_the_operation_itself(text, words):
    error = operation_error("it failed", text)
    assert error.words == words
    assert str(error) == f"it failed: {words}"


UNREPEATABLE = {
    "random": lambda: tf.random.uniform([2]),
    "clock": lambda: tf.timestamp(),
    "stochastic": lambda: tf.nn.dropout(tf.ones([4]), 0.5),
}


@pytest.mark.parametrize("draw", UNREPEATABLE.values(), ids=UNREPEATABLE)
def test_what_a_worker_refuses_for_not_repeating_names_the_cause_and_the_way_out(tff_context, draw):
    with pytest.raises(errors.OperationError, match="without a seed or reads the clock.*repeatable=False") as caught:
        tff.tensorflow.computation(draw)()
    assert "\n" not in str(caught.value)
    assert tff.tensorflow.computation(lambda: tf.random.stateless_uniform([], [1, 2]))() == np.float32(
        tf.random.stateless_uniform([], [1, 2])
    )


RUNTIMES = {
    "local": runtime.local,
    "in_process": runtime.in_process,
    "two_workers": lambda **options: runtime.local(1, num_workers=2, **options),
}
_INT = tff.TensorType(np.int32)
_AT_CLIENTS = tff.FederatedType(_INT, tff.CLIENTS)
_one = tff.tensorflow.computation(lambda: tf.constant(1))


@tff.federated_computation(tff.FederatedType(_INT, tff.SERVER))
def _of_no_client(x):
    ones = tff.federated_eval(_one, tff.CLIENTS)
    given = tff.federated_map(
        tff.tensorflow.computation(lambda x, y: x + y, _INT, _INT), (ones, tff.federated_broadcast(x))
    )
    return ones, {"sums": given}, tff.federated_sum(ones)


@tff.federated_computation(_AT_CLIENTS)
def _of_clients(x):
    return x, tff.federated_sum(x)


_broadcast = tff.federated_computation(tff.federated_broadcast, tff.FederatedType(_INT, tff.SERVER))


@pytest.mark.parametrize("name", RUNTIMES)
def test_arguments_that_tell_no_number_of_clients_mean_the_default(name):
    with RUNTIMES[name]():
        assert _of_no_client(5) == ([], {"sums": []}, 0)
        assert _of_clients([]) == ([], 0)
    with RUNTIMES[name](default_num_clients=3):
        assert _of_no_client(5) == ([1, 1, 1], {"sums": [6, 6, 6]}, 3)
        assert _broadcast(7) == 7
        assert _of_clients([]) == ([], 0)
        assert _of_clients([4, 5]) == ([4, 5], 9)


def test_a_worker_without_clients_cannot_tell_what_all_of_them_have(tff_context):
    with pytest.raises(errors.RunError, match="no client has the value.*default_num_clients"):
        _broadcast(7)


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("number", [-1, 1.5, True])
def test_a_default_number_of_clients_that_is_none(name, number):
    with pytest.raises(errors.InputError, match="default_num_clients must be a whole number, 0 or more"):
        RUNTIMES[name](default_num_clients=number)


WRONG_ARGUMENTS = [[1.5, 2], ["a"], [[1, 2]], [None], 3]


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_wrong_argument_and_a_failed_operation_raise_what_tff_raises(name):
    with RUNTIMES[name]():
        for argument in WRONG_ARGUMENTS:
            with pytest.raises(TypeError):
                _of_clients(argument)
        with pytest.raises(grpc.RpcError):
            tff.tensorflow.computation(lambda: tf.io.read_file("/nothing"))()


# -- entries of arguments --------------------------------------------------------------------------------------

_TWINS = tff.to_type(OrderedDict(features=np.int32, label=np.int32))


@tff.federated_computation(
    tff.FederatedType(_TWINS, tff.SERVER), tff.FederatedType(OrderedDict(train=_TWINS), tff.CLIENTS)
)
def _features(server, clients):
    def of_client(x):
        return x["train"]["features"]

    taken = tff.tensorflow.computation(of_client, tff.to_type(OrderedDict(train=_TWINS)))
    of_server = tff.tensorflow.computation(lambda x: x["features"], _TWINS)
    return tff.federated_map(of_server, server), tff.federated_map(taken, clients)


def _twins(features, label):
    return OrderedDict(features=features, label=label)


@pytest.mark.parametrize("name", RUNTIMES)
def test_entries_in_another_order_or_of_other_names_are_never_taken_for_each_other(name):
    right = _twins(1, 2)
    with RUNTIMES[name]():
        for one in (right, dict(right), (1, 2), [1, 2], tff.structure.Struct(right.items())):
            assert _features(one, [OrderedDict(train=one)] * 2) == (1, [1, 1])
        for wrong in (OrderedDict(label=2, features=1), {"label": 2, "features": 1}, _twins(1, 2) | {"x": 3}, {"x": 1}):
            with pytest.raises(errors.ArgumentError, match=r"argument\.server: expected the entries \['features'"):
                _features(wrong, [OrderedDict(train=right)])
            clients = [OrderedDict(train=right), OrderedDict(train=wrong)]
            words = r"argument\.clients\[client 1\]\.train: expected the entries \['features', 'label'\], in this order"
            with pytest.raises(errors.ArgumentError, match=words) as caught:
                _features(right, clients)
            assert "\n" not in str(caught.value)


# -- secure aggregation, for which no runtime has a protocol: the same sums, and a warning that they are plain ----

UPDATE_TYPE = tff.to_type(OrderedDict(delta=(np.float32, [6]), sent=(np.bool_, [6])))
WARNING = "secure aggregation is simulated: the server here sees every summand"


@pytest.fixture(name="context", params=["local", "in_process"])
def _context(request, tff_context):
    if request.param == "local":
        with tff.framework.get_context_stack().install(tff_context.context):
            yield
    else:
        with runtime.in_process():
            yield


def _updates(scale: float) -> list[OrderedDict]:
    rng = np.random.default_rng(3)
    return [
        OrderedDict(delta=(scale * rng.normal(size=6)).astype(np.float32), sent=rng.random(6) < 0.6) for _ in range(3)
    ]


BOUND = 2.0


@pytest.fixture(name="secure_mean", scope="module")
def _secure_mean():
    """Its computations belong to no runtime, and are compiled once."""
    return aggregators.SparseMeanFactory.secure(BOUND).create(UPDATE_TYPE)


@pytest.mark.slow
@pytest.mark.usefixtures("context")
def test_secure_sparse_mean_is_the_plain_one_within_a_step_of_quantisation(secure_mean, caplog):
    state = secure_mean.initialize()
    assert WARNING not in caplog.text  # nothing has been summed yet
    for scale in (0.3, 5.0):  # the second is clipped
        given = _updates(scale)
        found = secure_mean.next(state, given).result
        sent = np.array([one["sent"] for one in given])
        values = np.where(sent, np.clip([one["delta"] for one in given], -BOUND, BOUND), 0.0)
        expected = values.sum(axis=0) / np.maximum(sent.sum(axis=0), 1)
        # Each client rounds to 2^32 steps over twice the bound; the mean is float32.
        np.testing.assert_allclose(found, expected, atol=2 * BOUND / 2**32 + 1e-6)
    assert WARNING in caplog.text


@pytest.mark.usefixtures("context")
def test_the_three_secure_sums_of_tff():
    ints = tff.FederatedType(tff.TensorType(np.int32, [3]), tff.CLIENTS)

    @tff.federated_computation(ints)
    def sums(values):
        return tff.federated_secure_sum(values, 10), tff.federated_secure_sum_bitwidth(values, 4)

    values = [np.array([1, 2, 3], np.int32), np.array([7, 0, 10], np.int32)]
    for one in sums(values):
        assert np.asarray(one).tolist() == [8, 2, 13]
    process = tff.aggregators.SecureModularSumFactory(8).create(tff.TensorType(np.int32, [3]))
    assert process.next(process.initialize(), values).result.tolist() == [0, 2, 5]  # mod 8


@pytest.mark.usefixtures("context")
def test_other_computations_are_compiled_without_a_word(caplog):
    assert tff.federated_computation(lambda: tff.federated_value(1, tff.SERVER))() == 1
    assert "secure" not in caplog.text
