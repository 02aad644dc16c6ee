"""Optimizers inside the loop, step by step against TFF's own and against numpy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors, runtime
from tffcl.client_works.optimizers import FusedAdam, TffOptimizer, as_local_optimizer, decay_weights, empty_variable

RATES = (0.1, 0.1, 0.03, 0.01)  # decays on the way
FIRST = [np.array([1.0, -2.0, 3.0], np.float32), np.array([[0.5], [-0.5]], np.float32)]


def gradients(step):
    rng = np.random.default_rng(step)
    return [rng.normal(size=value.shape).astype(np.float32) for value in FIRST]


def trace(optimizer, shapes=None):
    """The variables after every step."""
    variables = [empty_variable(shape) for shape in shapes or [value.shape for value in FIRST]]
    slots = optimizer.allocate(variables)

    @tf.function(autograph=False)
    def run(first, all_gradients):
        for variable, value in zip(variables, first):
            variable.assign(value)
        state, seen = optimizer.begin(slots, variables), []
        for rate, step_gradients in zip(RATES, all_gradients):
            state = optimizer.step(slots, state, variables, step_gradients, tf.constant(rate))
            seen.append([variable.read_value() for variable in variables])
        return seen

    run(FIRST, [gradients(9) for _ in RATES])  # a round before leaves nothing behind
    return [[v.numpy() for v in step] for step in run(FIRST, [gradients(s) for s in range(len(RATES))])]


def tff_adam():
    optimizer = tff.learning.optimizers.build_adam(RATES[0])
    values = [tf.constant(value) for value in FIRST]
    state, seen = optimizer.initialize([tf.TensorSpec(v.shape, v.dtype) for v in values]), []
    for step, rate in enumerate(RATES):
        state = optimizer.set_hparams(state, {"learning_rate": rate})
        state, values = optimizer.next(state, values, [tf.constant(g) for g in gradients(step)])
        seen.append([v.numpy() for v in values])
    return seen


def numpy_momentum(momentum):
    values, moved, seen = [v.copy() for v in FIRST], [np.zeros_like(v) for v in FIRST], []
    for step, rate in enumerate(RATES):
        moved = [momentum * m + g for m, g in zip(moved, gradients(step))]
        values = [v - rate * m for v, m in zip(values, moved)]
        seen.append(values)
    return seen


def assert_same(found, expected):
    for found_step, expected_step in zip(found, expected):
        for one, other in zip(found_step, expected_step):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("fused", [True, False])
def test_adam_is_that_of_tff_step_by_step(fused, ragged):
    optimizer = FusedAdam() if fused else TffOptimizer(tff.learning.optimizers.build_adam(7.0))
    assert_same(trace(optimizer, [[3], [None, 1]] if ragged else None), tff_adam())


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_against_numpy_with_the_rate_of_each_step(momentum, ragged):
    optimizer = TffOptimizer(tff.learning.optimizers.build_sgdm(7.0, momentum or None))
    assert_same(trace(optimizer, [[3], [None, 1]] if ragged else None), numpy_momentum(momentum))


@pytest.mark.parametrize("fused", [True, False])
def test_a_computation_of_tff_trains_variables_with_an_open_axis(fused):
    """Adam by hand; the optimizations of TFF's graphs know of a variable only the shape that it first had."""
    optimizer = FusedAdam() if fused else TffOptimizer(tff.learning.optimizers.build_adam(7.0))

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None, 2]))
    def one_step(first):
        variables = [empty_variable([None, 2])]
        slots = optimizer.allocate(variables)

        @tf.function(autograph=False)
        def run(first):
            variables[0].assign(first)
            state = optimizer.begin(slots, variables)
            optimizer.step(slots, state, variables, [2.0 * tf.ones_like(first)], tf.constant(0.1))
            return variables[0].read_value()

        return run(first)

    first = np.arange(6, dtype=np.float32).reshape(3, 2)
    with runtime.in_process():
        np.testing.assert_allclose(one_step(first), first - 0.1, atol=1e-5)  # the first step of Adam is its rate


def test_decay_before_each_step_of_adam_is_adamw():
    decay, entries = 0.7, [np.array([1.0, 0.0, 1.0], np.float32), np.ones([2, 1], np.float32)]
    variables, optimizer = [tf.Variable(value) for value in FIRST], FusedAdam(epsilon=1e-7)
    slots = optimizer.allocate(variables)
    state = optimizer.begin(slots, variables)
    values, first, second = list(FIRST), [0.0, 0.0], [0.0, 0.0]
    for step, rate in enumerate(RATES):
        decay_weights(list(zip(variables, map(tf.constant, entries))), rate * decay)
        state = optimizer.step(slots, state, variables, gradients(step), tf.constant(rate))
        # Loshchilov & Hutter, 2019, algorithm 2, with the constant step inside the rate
        for place, gradient in enumerate(gradients(step)):
            first[place] = 0.9 * first[place] + 0.1 * gradient
            second[place] = 0.999 * second[place] + 0.001 * gradient**2
            corrected = first[place] / (1 - 0.9 ** (step + 1)), second[place] / (1 - 0.999 ** (step + 1))
            moved = corrected[0] / (np.sqrt(corrected[1]) + 1e-7) + decay * entries[place] * values[place]
            values[place] = values[place] - rate * moved
        for variable, value in zip(variables, values):
            np.testing.assert_allclose(variable, value, atol=2e-5)


def test_adam_takes_a_variable_without_entries():
    variables = [empty_variable([0, 2]), empty_variable([None, 3])]
    optimizer = FusedAdam()
    slots = optimizer.allocate(variables)

    @tf.function(autograph=False)
    def step():
        state = optimizer.begin(slots, variables)
        optimizer.step(slots, state, variables, [tf.zeros([0, 2]), tf.zeros([0, 3])], tf.constant(0.1))
        return [variable.read_value() for variable in variables]

    assert [value.shape[0] for value in step()] == [0, 0]


def test_what_counts_as_an_optimizer():
    assert isinstance(as_local_optimizer(None), FusedAdam)
    fused = FusedAdam(beta_1=0.5)
    assert as_local_optimizer(fused) is fused
    assert isinstance(as_local_optimizer(tff.learning.optimizers.build_sgdm(0.1)), TffOptimizer)
    with pytest.raises(errors.InputError, match="tff.learning.optimizers.Optimizer, found str"):
        as_local_optimizer("adam")
