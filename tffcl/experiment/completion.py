"""What a run adds to its directory at its start and its end: figures that the driver does not have.

`results.json` gains
  memory: bytes at the end of the run, as they are held for rehearsal: `client` (the client with most) and `server`,
    each with the rows and with the bytes of as many raw images (`..._raw_images`, one byte a pixel); `encoder`.
  selection_same_domain, selection_label_overlap: in the scenario `mixed`, of the entries that a client was given for a
    task the share of the same set, and the share with a label in common; the mean over clients and tasks that were
    given some.
  pretraining_accuracy: on task 1, before the run.
  accuracy_by_task, average_accuracy_by_task: where all tasks were pooled, of the one model on each of the original
    ones, [1][T] and its mean; `nll_of_tasks` and `average_nll_of_tasks` likewise of a density, [C][T].
  average_nll_one_mask: with several masks the mean over tasks and over the masks by themselves, beside
    `average_nll_task_known`, which averages their probabilities.
`samples.npz` holds pictures drawn from each task's density; `experiment.toml` all options, for `--config`.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tffcl import archive, client_works, datasets, models, storage
from tffcl.options import OptionError
from tffcl.program import cohorts
from tffcl.program.state import RunState
from tffcl.streams import domains_of
from tffcl.templates import ContinualProcess

_SAMPLES, _MOST_CLIENTS = 10, 5


def on_start(plan: Any, folder: Optional[pathlib.Path]) -> None:
    """Writes experiment.toml, with which `--config` starts such a run again, and the frozen encoder."""
    if folder is None:
        return
    with contextlib.suppress(OptionError):  # of objects that no file can name
        text = plan.experiment.replace(output_dir=None, resume=False).to_toml()
        storage.write_whole(folder / "experiment.toml", text.encode())
    if plan.frozen is not None:
        plan.frozen.write(folder)


def finish(plan: Any, process: ContinualProcess, state: RunState, folder: Optional[pathlib.Path]) -> dict[str, Any]:
    """See the module."""
    more: dict[str, Any] = {}
    if plan.method.schedule == "fil-ver" and plan.method.own_network:
        more["memory"] = _memory(plan, state)
        if plan.frozen is not None and plan.frozen.trained:
            more["pretraining_accuracy"] = plan.frozen.accuracy
    if plan.method.pool in ("clients", "all") and len(state.store):
        more.update(_of_original_tasks(plan, process, state))
    if plan.scenario == "mixed" and process.num_foreign:
        named = plan.stream.named_labels(plan.dataset.label_names)
        more.update(selection_shares(named, state.base.entries, state.selections))
    network = getattr(process.work, "network", None)
    if isinstance(network, models.MADENetwork) and len(state.store):
        more.update(_of_densities(plan, process, state, folder))
    return more


def selection_shares(
    labels: Sequence[Sequence[Sequence[str]]],
    entries: Sequence[tuple[int, int]],
    selections: Sequence[Sequence[Sequence[int]]],
) -> dict[str, Optional[float]]:
    """How often selections are of the same set as the task, and have a label in common with it; None without any.

    Args:
      labels: `labels[client][task]`, names SET/LABEL.
      entries: (client, task) of each entry of the knowledge base.
      selections: `selections[task][client]`, ids of entries.
    """
    shares = []
    for task, chosen in enumerate(selections):
        for client, ids in enumerate(chosen):
            own, others = labels[client][task], [labels[entries[entry][0]][entries[entry][1]] for entry in ids]
            both = [(bool({*domains_of(own)} & {*domains_of(other)}), bool({*own} & {*other})) for other in others]
            if both:
                shares.append(np.mean(both, axis=0))
    means = np.mean(shares, axis=0).tolist() if shares else [None, None]
    return dict(zip(("selection_same_domain", "selection_label_overlap"), means))


def _of_original_tasks(plan: Any, process: ContinualProcess, state: RunState) -> dict[str, Any]:
    """Scores of pooled models on each of the tasks that were pooled, of every client."""
    data = plan.client_data(plan.stream)
    found = [
        [
            cohorts.test_of(process, state, min(client, len(state.store) - 1), 0, data.task(client, task))
            for task in range(data.num_tasks)
        ]
        for client in range(data.num_clients)
    ]
    if cohorts.scores_are(process) == "nll":
        nll = [[float(np.mean(sums["losses"])) for sums in tasks] for tasks in found]
        return {"nll_of_tasks": nll, "average_nll_of_tasks": float(np.mean(nll))}
    counted = [[[float(sums["correct"]), float(sums["count"])] for sums in tasks] for tasks in found]
    totals = np.array(counted).sum(axis=0)
    accuracies = [float(right / count) if count else None for right, count in totals]
    known = [each for each in accuracies if each is not None]
    return {"accuracy_by_task": [accuracies], "average_accuracy_by_task": float(np.mean(known)) if known else None}


# -- memory of rehearsal ------------------------------------------------------------------------------------------


def _memory(plan: Any, state: RunState) -> dict[str, Optional[int]]:
    """Bytes at the end of the run; None of clients whose states cannot be read."""
    image = math.prod(plan.input_shape)
    clients = [_rows_and_bytes(state.store[client], "memory_") for client in range(len(state.store))]
    rows, held = max(clients, default=(None, None))
    if plan.method.pool == "replay":  # its memory is images, and stands with the data
        rows = min(plan.method.remembered(plan), (plan.num_tasks - 1) * plan.examples_per_task)
        held = rows * (image + np.dtype(np.int32).itemsize)
    finalizer = state.server["finalizer"]
    kept = finalizer.get("memory", {}) if isinstance(finalizer, Mapping) else {}
    server_rows, server_held = _rows_and_bytes(kept)
    return {
        "client_rows": rows,
        "client": held,
        "client_raw_images": None if rows is None else rows * image,
        "server_rows": server_rows,
        "server": server_held,
        "server_raw_images": server_rows * image,
        "encoder": 0 if plan.frozen is None else plan.frozen.model.encoder.num_bytes,
    }


def _rows_and_bytes(held: Mapping[str, Any], prefix: str = "") -> tuple[int, int]:
    arrays = {name: np.asarray(value) for name, value in held.items() if name.startswith(prefix)}
    if not arrays:
        return 0, 0
    return len(arrays[f"{prefix}label"]), sum(array.nbytes for array in arrays.values())


# -- densities ----------------------------------------------------------------------------------------------------


def _of_densities(
    plan: Any, process: ContinualProcess, state: RunState, folder: Optional[pathlib.Path]
) -> dict[str, Any]:
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
