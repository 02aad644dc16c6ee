"""What a run of densities adds at its end: pictures drawn from each task's density, and the NLL under one mask.

`samples.npz` in the run directory holds the pictures. `average_nll_one_mask` is, with several masks, the mean over
tasks and over the masks by themselves, beside `average_nll_task_known`, which averages their probabilities.
"""

from __future__ import annotations

import math
import pathlib
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tffcl import archive, client_works, datasets, models
from tffcl.program.state import RunState
from tffcl.templates import ContinualProcess

_SAMPLES, _MOST_CLIENTS = 10, 5


def finish(plan: Any, process: ContinualProcess, state: RunState, folder: Optional[pathlib.Path]) -> dict[str, Any]:
    """What is added to the results; writes `samples.npz`."""
    network, clients = process.work.network, range(len(state.store))
    parameters = [_parameters(process, state, client) for client in clients]
    more = {}
    if network.num_patterns > 1:
        losses = [
            _under_pattern(
                network, state.store[client]["plan"], parameters[client][task], plan.data.task(client, task), k
            )
            for client in clients
            for task in range(plan.data.num_tasks)
            for k in range(network.num_patterns)
        ]
        more["average_nll_one_mask"] = float(np.mean([each.mean() for each in losses]))
    shape = image_shape(plan.dataset)
    if shape is not None and folder is not None:
        drawn = [
            _drawn(network, state.store[client]["plan"], parameters[client], shape, plan.seed)
            for client in clients[:_MOST_CLIENTS]
        ]
        archive.write(folder / "samples.npz", {"samples": np.stack(drawn)})
    return more


def _parameters(process: ContinualProcess, state: RunState, client: int) -> list[tuple[Any, Any]]:
    """Kernels and local parameters of each of a client's tasks."""
    work, held, found = process.work, state.store[client], []
    for task in range(state.task):
        view = {name: tf.convert_to_tensor(value) for name, value in process.task_view(held, task).items()}
        if isinstance(work, client_works.DecomposedWork):
            kernels = work.evaluated_kernel(view)
        else:
            kernels = state.server["shared"][: work.network.kernels.size]
        found.append((kernels, view["local"]))
    return found


def _under_pattern(network: Any, key: Any, parameters: tuple[Any, Any], task: Any, pattern: int) -> np.ndarray:
    """-log p(x) of each test row in nats under one mask."""
    kernels, local = parameters
    context, rows = (
        {name: tf.constant(value) for name, value in each.items()} for each in (task.test_context, task.test)
    )
    masked = kernels * network.connectivity(tf.convert_to_tensor(key), pattern)
    return network.losses(masked, local, None, context, rows, None).numpy()


def _drawn(network: Any, key: Any, parameters: list[tuple[Any, Any]], shape: tuple[int, int], seed: int) -> np.ndarray:
    """uint8 [T, n, height, width], drawn from each task's density."""
    kernels, local = variables = [tf.Variable(value) for value in parameters[0]]
    made = models.MADE.from_task(network, kernels, local, tf.convert_to_tensor(key))  # one for all, so traced once
    drawn = []
    for task in parameters:
        for variable, value in zip(variables, task):
            variable.assign(value)
        drawn.append(made.sample(_SAMPLES, seed=seed))
    return np.stack(drawn).astype(np.uint8).reshape(len(drawn), _SAMPLES, *shape)


def image_shape(data: datasets.BinaryVectors) -> Optional[tuple[int, int]]:
    """Height and width of the pictures that the vectors are; None where they are no square pictures."""
    side = math.isqrt(data.width)
    return (side, side) if side * side == data.width and len(set(data.widths)) == 1 else None
