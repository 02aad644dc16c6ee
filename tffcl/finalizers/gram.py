"""What the server makes of Gram sums: a linear classifier in closed form, and updates orthogonal to past inputs (FOT).

Closed form (`AnalyticWork`): with phi the features of an example, the last of them a 1, and y its class as a row of
zeros and a one, G = sum phi phi' and Q = sum phi y' over all examples that clients ever had. Everything is float64, so
that sums in another order agree in all digits that matter.

FOT (Bakman, Yaldiz, Ezzeldin, Avestimehr: Federated Orthogonal Training, ICLR 2024): for each layer the server keeps an
orthonormal basis B, `[r, d]`, of a subspace of its inputs. When Gram sums G = X X' of a task arrive, B gains the
directions of (I - B'B) G (I - B'B) with the most energy, the fewest that give B the share epsilon of it:
tr(B G B') >= epsilon tr(G), the criterion of Saha, Garg, Roy: Gradient Projection Memory, ICLR 2021. An update U of the
layer's weights, `[d, units]`, becomes U - B'B U: of an input in the subspace the layer's output stays as it was.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors
from tffcl.client_works.gram import AnalyticWork, OrthogonalWork, SharedLayer, symmetric
from tffcl.templates import FinalizerProcess
from tffcl.templates.messages import at_server, ordered

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


# Of all energy: directions with less are what float32 leaves of sums.
_NOISE = 1e-7


def extended(basis: tf.Tensor, gram: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """The basis with the fewest further directions that give it a share of the energy of G.

    >>> gram = tf.linalg.diag(tf.constant([1.0, 6.0, 3.0], tf.float64))
    >>> extended(tf.zeros([0, 3], tf.float64), gram, tf.constant(0.85, tf.float64)).shape.as_list()
    [2, 3]

    Args:
      basis: B, float64 `[r, d]`, orthonormal rows.
      gram: G, float64 `[d, d]`.
      share: epsilon, float64; 0 adds nothing.
    """
    seen = tf.matmul(basis, gram)
    rest = gram - tf.matmul(basis, seen, transpose_a=True)
    rest -= tf.matmul(tf.matmul(rest, basis, transpose_b=True), basis)
    energy, directions = tf.linalg.eigh((rest + tf.transpose(rest)) / 2)
    energy, directions = tf.maximum(energy[::-1], 0.0), tf.transpose(directions)[::-1]
    total, before = tf.linalg.trace(gram), tf.reduce_sum(seen * basis) + tf.cumsum(energy, exclusive=True)
    wanted = tf.logical_and(before < share * total, energy > _NOISE * total)
    return tf.concat([basis, directions[: tf.math.count_nonzero(wanted, dtype=tf.int32)]], 0)


def orthogonal(layer: SharedLayer, basis: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> list[tuple[slice, tf.Tensor]]:
    """The layer's weights after new - old without what lies in the basis: (place in the vector, float32 values)."""
    places = [layer.kernel] if layer.bias is None else [layer.kernel, layer.bias]
    rows = layer.size - (layer.bias is not None)
    units = (layer.kernel.stop - layer.kernel.start) // rows

    def weights(vector: tf.Tensor) -> tf.Tensor:
        joined = tf.concat([vector[place] for place in places], 0)
        return tf.cast(tf.reshape(joined, [layer.size, units]), tf.float64)

    after = weights(new)
    after -= tf.matmul(basis, tf.matmul(basis, after - weights(old)), transpose_a=True)
    flat = tf.cast(tf.reshape(after, [-1]), tf.float32)
    return list(zip(places, tf.split(flat, [place.stop - place.start for place in places])))


def _subspaces(work: OrthogonalWork, energy: float, growth: float) -> tuple[tff.Computation, tff.Computation]:
    """The first state, and `(state, old weights, new ones, Gram sums) -> <state, weights, measurements>`."""
    basis_types = OrderedDict((each.name, tff.TensorType(np.float64, [None, each.size])) for each in work.layers)
    state_type = tff.to_type(OrderedDict(bases=basis_types, arrivals=np.int32))
    gram_type = tff.TensorType(np.float32, [work.gram_size])

    @tff.tensorflow.computation
    def nothing() -> OrderedDict:
        bases = {each.name: tf.zeros([0, each.size], tf.float64) for each in work.layers}
        return OrderedDict(bases=ordered("bases", bases, basis_types), arrivals=tf.constant(0))

    @tff.tensorflow.computation(state_type, work.shared_type, work.shared_type, gram_type)
    def project(state: OrderedDict, old: tf.Tensor, new: tf.Tensor, gram: tf.Tensor) -> tuple:
        finite = tf.reduce_all(tf.math.is_finite(gram))
        arrived = tf.logical_and(finite, tf.reduce_any(tf.not_equal(gram, 0.0)))
        share = tf.minimum(energy + growth * tf.cast(state["arrivals"], tf.float64), 1.0)
        pieces = tf.split(tf.cast(gram, tf.float64), [each.gram_size for each in work.layers])
        bases = {}
        for layer, piece in zip(work.layers, pieces):
            basis = state["bases"][layer.name]
            more = functools.partial(extended, basis, symmetric(piece, layer.size), share)
            bases[layer.name] = tf.cond(arrived, more, functools.partial(tf.identity, basis))
        kept = OrderedDict((name, tf.shape(basis)[0]) for name, basis in bases.items())
        after = tf.where(tf.add_n(list(kept.values())) > 0, old, new)
        for layer in work.layers:
            for place, values in orthogonal(layer, bases[layer.name], old, new):
                after = tf.concat([after[: place.start], values, after[place.stop :]], 0)
        measured = OrderedDict(kept=kept, rejected=1 - tf.cast(finite, tf.int32))
        now = OrderedDict(
            bases=ordered("bases", bases, basis_types), arrivals=state["arrivals"] + tf.cast(arrived, tf.int32)
        )
        return now, tf.ensure_shape(after, work.shared_type.shape), measured

    return nothing, project


@errors.checked_arguments
def build_orthogonal_update(
    inner: FinalizerProcess, work: OrthogonalWork, energy: float, growth: float = 0.0
) -> FinalizerProcess:
    """What `inner` makes of the clients' updates, without what lies in the subspaces of past tasks' inputs.

    It takes aggregates `<weights=..., gram=float32[gram_size]>`: `inner`'s aggregate, and the Gram sums of all clients,
    which enter the subspaces first. Weights of other layers than `work.layers` stay as they are once there is a
    subspace. Its state is that of `inner`, the bases, and how often sums arrived. Measurements: `update`, those of
    `inner`; and `subspaces`: `kept`, the dimensions of each layer's, and `rejected`, 1 where the sums were not finite
    and were left out.

    Shown in docs/methods.md.

    Args:
      inner: a finalizer of the shared weights, such as `build_server_update` gives.
      work: the clients' work.
      energy: epsilon, the share of the energy of a layer's inputs that its subspace has; 0 leaves what `inner` made to
        the bit.
      growth: what epsilon grows by each time that sums arrive, to 1 at most.

    Raises:
      ContractError: `inner` is of other weights than the work's.
      InputError: an epsilon that is not from 0 to 1, or a negative growth.
    """
    for name, value in (("energy", energy), ("growth", growth)):
        if not 0 <= value <= 1:
            raise errors.InputError(f"{name}: expected 0 to 1, found {value}")
    _, shared_type, update_type = inner.next.type_signature.parameter
    if shared_type.member != work.shared_type:
        raise errors.ContractError(f"finalizer: inner is of {shared_type}, the client work of {work.shared_type}")
    nothing, project = _subspaces(work, energy, growth)

    @tff.federated_computation
    def initialize() -> tff.Value:
        return tff.federated_zip(
            OrderedDict(inner=inner.initialize(), subspaces=tff.federated_eval(nothing, tff.SERVER))
        )

    aggregate_type = OrderedDict(weights=update_type.member, gram=project.type_signature.parameter[3])

    @tff.federated_computation(initialize.type_signature.result, shared_type, at_server(aggregate_type))
    def next_step(state: tff.Value, shared: tff.Value, aggregate: tff.Value) -> Any:
        updated = inner.next(state.inner, shared, aggregate.weights)
        projected = tff.federated_map(project, (state.subspaces, shared, updated.result, aggregate.gram))
        new_state = tff.federated_zip(OrderedDict(inner=updated.state, subspaces=projected[0]))
        measured = tff.federated_zip(OrderedDict(update=updated.measurements, subspaces=projected[2]))
        return tff.templates.MeasuredProcessOutput(new_state, projected[1], measured)

    return FinalizerProcess(initialize, next_step)
