"""What is called again and again leaves nothing behind: no value in a worker, no object in this process."""

from __future__ import annotations

import collections
import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from serving import assert_settles

from tffcl import runtime
from tffcl.runtime.executor import WorkerStub

_VECTOR = tff.TensorType(np.float32, [8000])
_STATE = tff.to_type(collections.OrderedDict(base=_VECTOR, count=tff.TensorType(np.int32)))
_CREATING = ("create_value", "create_encoded_value", "create_call", "create_struct", "create_selection")


@tff.tensorflow.computation(_STATE, _VECTOR)
def _trained(state, shared):
    size = tf.shape(state["base"])
    return collections.OrderedDict(
        base=state["base"] + tf.reduce_mean(shared) + tf.zeros(size), count=state["count"] + 1
    )


@tff.tensorflow.computation(_STATE)
def _upload(state):
    return state["base"]


@tff.federated_computation(
    tff.FederatedType(_VECTOR, tff.SERVER, all_equal=True), tff.FederatedType(_STATE, tff.CLIENTS)
)
def _round(shared, states):
    states = tff.federated_map(_trained, (states, tff.federated_broadcast(shared)))
    return tff.federated_mean(tff.federated_map(_upload, states)), states


@pytest.fixture(name="context", params=["local", "in_process", "two_workers"])
def _context(request, tff_context):
    if request.param == "local":
        yield tff_context.context
        return
    with runtime.in_process() if request.param == "in_process" else runtime.local(1, num_workers=2) as entered:
        yield entered.context


@pytest.mark.slow
def test_rounds_leave_nothing_behind(context, monkeypatch):
    living = set()

    def watch(name):
        create = getattr(WorkerStub, name)

        def created(stub, request):
            response = create(stub, request)
            living.add((id(stub), response.value_ref.id))
            return response

        monkeypatch.setattr(WorkerStub, name, created)

    for name in _CREATING:
        watch(name)
    dispose = WorkerStub.dispose  # what every stub calls in the end

    def disposed(stub, request):
        living.difference_update((id(stub), each.id) for each in request.value_ref)
        dispose(stub, request)

    monkeypatch.setattr(WorkerStub, "dispose", disposed)

    def rounds(number):
        """Runs rounds whose results go into the next."""
        shared = np.ones(8000, np.float32)
        states = [collections.OrderedDict(base=shared, count=np.int32(0))] * 3
        for _ in range(number):
            shared, states = _round(shared, states)
        assert states[2]["count"] == number
        del shared, states
        gc.collect()

    with tff.framework.get_context_stack().install(context):
        rounds(2)  # compiles, and fills what is kept of computations
        gc.freeze()  # what is there already need not be looked through again and again
        try:
            # A single value or object that stays after every round would make 30 in a window.
            assert_settles(lambda: rounds(1), lambda: len(living) + len(gc.get_objects()), 15)
        finally:
            gc.unfreeze()


@pytest.mark.parametrize("warm_up", [0, 45, 200])
def test_a_heap_that_settles_late_is_no_growth(warm_up):
    calls = itertools.count()
    assert_settles(lambda: next(calls), lambda: 2 * min(next(calls), warm_up), 10)


@pytest.mark.parametrize("kept", [1, 1000])
def test_what_is_kept_of_every_call_never_settles(kept):
    calls = itertools.count()
    with pytest.raises(pytest.fail.Exception, match="does not settle"):
        assert_settles(lambda: next(calls), lambda: kept * next(calls), 15)
