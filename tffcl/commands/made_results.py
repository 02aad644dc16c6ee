"""What the densities at the end of a run add to its directory: figures that the driver does not have, and samples.

`results.json` gains `nll_of_tasks` and `average_nll_of_tasks` where tasks were pooled: the one density on each of the
original tasks alone, whose rows have their own width. With several masks it gains `average_nll_one_mask`, the mean
over tasks and over the masks by themselves, beside `average_nll_task_known`, which averages their probabilities.
`samples.npz` holds pictures drawn from each task's density.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tffcl import client_works, models, program, reports
from tffcl.client_works import evaluation
from tffcl.commands import confedmade, running, vector_data
from tffcl.commands.confedmade_flags import DECOMPOSED, POOLED
from tffcl.commands.confedmade_options import ConFedMADEOptions
from tffcl.datasets import BinaryVectors
from tffcl.program.files import write_json
from tffcl.program.state import RunState
from tffcl.streams import TaskStream
from tffcl.templates import ContinualProcess
from tffcl.transfers import archive

NUM_SAMPLES = 10
MOST_CLIENTS = 5  # with samples


def complete(
    folder: pathlib.Path,
    options: ConFedMADEOptions,
    process: ContinualProcess,
    vectors: BinaryVectors,
    stream: TaskStream,
) -> None:
    """Adds to the directory of a run that has ended; called where the run's TFF runtime is entered.

    Args:
      folder: the run directory.
      options: of the run, filled in.
      process: of the run.
      vectors: its data.
      stream: the original tasks, before they were pooled.
    """
    clients = _clients(folder, options, process, vectors)
    if not clients:  # who keep their states where nobody here sees them
        return
    results = reports.load_results(folder)
    if options.method in POOLED:
        results["nll_of_tasks"] = _nll_of_tasks(clients, program.DensityClientData(vectors, stream))
        results["average_nll_of_tasks"] = float(np.mean(results["nll_of_tasks"]))
    if options.num_masks > 1:
        pooled = vector_data.pooled(options.method, stream)
        results["average_nll_one_mask"] = _one_mask(clients, program.DensityClientData(vectors, pooled))
    write_json(folder / "results.json", results)
    shape = vector_data.image_shape(vectors)
    if shape is not None:
        samples = np.stack([client.samples(shape, options.seed) for client in clients[:MOST_CLIENTS]])
        archive.write(folder / "samples.npz", {"samples": samples})


class Density:
    """What one client holds at the end: the parameters of each of its tasks."""

    def __init__(self, network: models.MADENetwork, plan: np.ndarray, tasks: list[tuple[Any, Any]]):
        self.network, self.plan, self.tasks = network, tf.convert_to_tensor(plan), tasks

    def losses(self, task: int, tested: program.ClientTask, pattern: int | None = None) -> np.ndarray:
        """-log p(x) of each test row in nats, under one task's parameters and one mask, or the mean of all masks."""
        kernels, local = self.tasks[task]
        context, rows = (
            {name: tf.constant(v) for name, v in one.items()} for one in (tested.test_context, tested.test)
        )
        if pattern is None:
            data = {"context": context, "examples": rows}
            return evaluation.evaluated(self.network, kernels, local, None, self.plan, data)["losses"].numpy()
        masked = evaluation.masked(self.network, kernels, self.plan, pattern)
        return self.network.losses(masked, local, None, context, rows, None).numpy()

    def samples(self, shape: tuple[int, int], seed: int) -> np.ndarray:
        """uint8 [T, n, height, width], drawn from each task's density."""
        kernels, local = variables = [tf.Variable(value) for value in self.tasks[0]]
        made = models.MADE.from_task(self.network, kernels, local, self.plan)  # one for all, so traced once
        drawn = []
        for task in self.tasks:
            for variable, value in zip(variables, task):
                variable.assign(value)
            drawn.append(made.sample(NUM_SAMPLES, seed=seed))
        return np.stack(drawn).astype(np.uint8).reshape(len(drawn), NUM_SAMPLES, *shape)


def _clients(
    folder: pathlib.Path, options: ConFedMADEOptions, process: ContinualProcess, vectors: BinaryVectors
) -> list[Density]:
    """The densities of every client at the end of the run."""
    network = _network(options, vectors.width, process.num_foreign)
    work = None
    if options.method in DECOMPOSED:
        training, decomposition = confedmade.training_of(options), confedmade.decomposition_of(options)
        work = client_works.DecomposedWork(network, training, decomposition)
    state = running.last_state(options, folder, process)
    return [_density(work, network, process, state, client) for client in range(len(state.store))]


def _network(options: ConFedMADEOptions, width: int, num_foreign: int) -> models.MADENetwork:
    config = confedmade.made_config(options, width)
    return models.MADENetwork(
        dataclasses.replace(config, share_biases=options.method not in DECOMPOSED), num_foreign
    )


def _density(
    work: client_works.DecomposedWork | None,
    network: models.MADENetwork,
    process: ContinualProcess,
    state: RunState,
    client: int,
) -> Density:
    held: Mapping[str, Any] = state.store[client]
    tasks = []
    for task in range(state.task):
        view = {name: tf.convert_to_tensor(value) for name, value in process.task_view(held, task).items()}
        shared = state.server["shared"][: network.kernels.size]
        kernels = shared if work is None else work.evaluated_kernel(view)
        tasks.append((kernels, view["local"]))
    return Density(network, held["plan"], tasks)


def _nll_of_tasks(clients: list[Density], data: program.ClientData) -> list[list[float]]:
    """[C][T], mean nats of each original task's test rows under the density of its client, or the only one."""
    return [
        [
            float(clients[min(client, len(clients) - 1)].losses(0, data.task(client, task)).mean())
            for task in range(data.num_tasks)
        ]
        for client in range(data.num_clients)
    ]


def _one_mask(clients: list[Density], data: program.ClientData) -> float:
    """Mean nats over clients, their tasks, and the masks one by one."""
    return float(
        np.mean(
            [
                density.losses(task, data.task(client, task), pattern).mean()
                for client, density in enumerate(clients)
                for task in range(data.num_tasks)
                for pattern in range(density.network.num_patterns)
            ]
        )
    )
