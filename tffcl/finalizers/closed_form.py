"""Linear classifiers in closed form, of sums over all examples that clients ever had (`AnalyticWork`).

With phi the features of an example, the last of them a 1, and y its class as a row of zeros and a one:
G = sum phi phi', Q = sum phi y'. Everything is float64, so that sums in another order agree in all digits that matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works.analytic import AnalyticWork, symmetric
from tffcl.templates import FinalizerProcess
from tffcl.templates.messages import at_server

# From G, float64 [D, D] (None where it is not sent), and Q, float64 [D, L], to W, float64 [D, L].
Solve = Callable[[Any, tf.Tensor], tf.Tensor]


def ridge(regularisation: float) -> Solve:
    """argmin_W ||Phi W - Y||^2 + regularisation ||W||^2 = (G + regularisation I)^-1 Q (Tang et al.: AFCL, 2025).

    >>> gram, moments = tf.constant([[3.0, 0.0], [0.0, 1.0]], tf.float64), tf.constant([[2.0], [1.0]], tf.float64)
    >>> ridge(1.0)(gram, moments).numpy().tolist()
    [[0.5], [0.5]]

    Raises:
      InputError: the regularisation is not above 0.
    """
    errors.check_above_zero("regularisation", regularisation)
    return lambda gram, moments: tf.linalg.solve(
        gram + regularisation * tf.eye(tf.shape(gram)[0], dtype=tf.float64), moments
    )


def _means(moments: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Class means `[D - 1, L]`, zeros for a class without examples, and their numbers `[L]`."""
    counts = moments[-1]
    return tf.math.divide_no_nan(moments[:-1], counts), counts


def nearest_mean() -> Solve:
    """The class whose mean is nearest: -||x - mu||^2 / 2 = mu'x - ||mu||^2 / 2 + what is common to all classes.

    Moments are sums of (x, 1) over the examples of each class.

    >>> nearest_mean()(None, tf.constant([[2.0, 9.0], [2.0, 3.0]], tf.float64)).numpy().tolist()
    [[1.0, 3.0], [-0.5, -4.5]]
    """

    def solve(gram: Any, moments: tf.Tensor) -> tf.Tensor:
        del gram
        means, _ = _means(moments)
        return tf.concat([means, -0.5 * tf.reduce_sum(means**2, axis=0, keepdims=True)], 0)

    return solve


def discriminant(shrinkage: float) -> Solve:
    """Gaussians with the classes' means and one covariance S: mu' S^-1 x - mu' S^-1 mu / 2 (Fisher, 1936).

    S is the pooled covariance within classes, of which the share `shrinkage` is replaced by a multiple of I with the
    same trace. Classes count alike, however many examples they have.

    >>> gram = tf.constant([[24.0, 6.0], [6.0, 3.0]], tf.float64)  # of x = 0, 2 and 4, and of 1
    >>> moments = tf.constant([[2.0, 4.0], [2.0, 1.0]], tf.float64)
    >>> [round(each, 3) for each in discriminant(1e-9)(gram, moments).numpy()[0]]
    [0.5, 2.0]

    Raises:
      InputError: the shrinkage is not above 0 or is above 1.
    """
    errors.check_above_zero("shrinkage", shrinkage)
    if shrinkage > 1:
        raise errors.InputError(f"shrinkage: expected at most 1, found {shrinkage}")

    def solve(gram: tf.Tensor, moments: tf.Tensor) -> tf.Tensor:
        means, counts = _means(moments)
        within = gram[:-1, :-1] - tf.matmul(means * counts, means, transpose_b=True)
        pooled = tf.math.divide_no_nan(within, tf.reduce_sum(counts))
        size = tf.cast(tf.shape(pooled)[0], tf.float64)
        # 1 where there is no variance at all, as before the first example: S has an inverse.
        variance = tf.linalg.trace(pooled) / size
        variance = tf.where(variance > 0, variance, 1.0)
        covariance = (1 - shrinkage) * pooled + shrinkage * variance * tf.eye(tf.shape(pooled)[0], dtype=tf.float64)
        directions = tf.linalg.solve(covariance, means)
        return tf.concat([directions, -0.5 * tf.reduce_sum(means * directions, axis=0, keepdims=True)], 0)

    return solve


@errors.checked_arguments
def build_closed_form(work: AnalyticWork, solve: Solve) -> FinalizerProcess:
    """Adds up what clients send, in its own state, and shares what `solve` makes of the sums.

    Measurements: `examples`, of which the sums are; and `rejected`, 1 where the solution was not finite and the server
    kept the one before (the sums are kept all the same).

    Shown in docs/methods.md.

    Raises:
      InputError: `solve` is no function.
    """
    if isinstance(solve, type) or not callable(solve):
        raise errors.InputError(f"solve: expected a function of G and Q, such as ridge(1.0), found {solve!r}")
    types = OrderedDict(moments=tff.TensorType(np.float64, work.shared_type.shape))
    if work.with_gram:
        types["gram"] = tff.TensorType(np.float64, [work.gram_size])
    sums_type, size = tff.to_type(types), work.num_features

    @tff.tensorflow.computation
    def nothing() -> OrderedDict:
        return OrderedDict((name, tf.zeros(kind.shape, tf.float64)) for name, kind in types.items())

    @tff.tensorflow.computation(sums_type, work.shared_type, sums_type)
    def add_and_solve(state: OrderedDict, shared: tf.Tensor, aggregate: OrderedDict) -> tuple:
        sums = OrderedDict((name, state[name] + aggregate[name]) for name in types)
        gram = symmetric(sums["gram"], size) if work.with_gram else None
        solution = tf.ensure_shape(solve(gram, sums["moments"]), work.shared_type.shape)
        finite = tf.reduce_all(tf.math.is_finite(solution))
        examples = tf.cast(tf.round(tf.reduce_sum(sums["moments"][-1])), tf.int64)
        measured = OrderedDict(examples=examples, rejected=1 - tf.cast(finite, tf.int32))
        return sums, tf.where(finite, solution, shared), measured

    @tff.federated_computation
    def initialize() -> tff.Value:
        return tff.federated_eval(nothing, tff.SERVER)

    @tff.federated_computation(at_server(sums_type), at_server(work.shared_type), at_server(sums_type))
    def next_step(state: tff.Value, shared: tff.Value, aggregate: tff.Value) -> Any:
        applied = tff.federated_map(add_and_solve, (state, shared, aggregate))
        return tff.templates.MeasuredProcessOutput(applied[0], applied[1], applied[2])

    return FinalizerProcess(initialize, next_step)
