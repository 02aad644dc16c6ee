"""What a run of FIL-VER adds to its directory when it ends: figures that the driver does not have.

`results.json` gains
  memory: bytes at the end of the run, as they are held: `client` (the client with most) and `server`, each with the
    rows and with the bytes of as many raw images (`..._raw_images`, one byte a pixel); `encoder`.
  pretraining_accuracy: on task 1, before the run.
  accuracy_by_task, average_accuracy_by_task: where all tasks were pooled, of the one model on each of the original
    ones, [1][T] and its mean.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Optional

import click
import numpy as np
import tensorflow as tf

from tffcl import program, reports
from tffcl.client_works import evaluation
from tffcl.commands import fil_ver_models, running
from tffcl.commands.fil_ver_flags import OFFLINE
from tffcl.commands.fil_ver_models import FrozenModel
from tffcl.commands.fil_ver_options import FilVerOptions
from tffcl.datasets import Domains
from tffcl.program.files import write_json
from tffcl.program.state import RunState
from tffcl.reports import run_files, tables
from tffcl.streams import TaskStream
from tffcl.templates import ContinualProcess


def complete(
    folder: pathlib.Path,
    options: FilVerOptions,
    process: ContinualProcess,
    domains: Domains,
    stream: TaskStream,
    frozen: Optional[FrozenModel],
) -> None:
    """Adds to the results of a run that has ended; called where the run's TFF runtime is entered.

    Args:
      folder: the run directory.
      options: of the run, filled in.
      process: of the run.
      domains: its images.
      stream: the original tasks, before they were pooled.
      frozen: what was trained on, or None where nothing was frozen.
    """
    results = reports.load_results(folder)
    state = running.last_state(options, folder, process)
    results["memory"] = _memory(options, state, domains, frozen)
    if frozen is not None and frozen.trained:
        results["pretraining_accuracy"] = frozen.accuracy
    if options.method in OFFLINE:
        accuracies = _of_original_tasks(options, state.server["shared"], domains, stream, frozen)
        known = [one for one in accuracies if one is not None]
        results["accuracy_by_task"] = [accuracies]
        results["average_accuracy_by_task"] = float(np.mean(known)) if known else None
    write_json(folder / "results.json", results)


def show(folder: pathlib.Path) -> None:
    """Prints the results of a run directory as tables on stdout, and draws its plots."""
    results = reports.load_results(folder)
    click.echo(reports.results_table([results]))
    for line in reports.privacy_lines(results):
        click.echo(line)
    click.echo()
    click.echo(by_task_table({str(results["method"]): results}))
    plots = reports.write_plots(folder)
    click.echo(f"\nrun directory: {folder} ({len(plots)} plots in {folder / 'plots'})")


def by_task_table(runs: Mapping[str, Mapping[str, Any]], *, markdown: bool = False) -> str:
    """A row for each run: accuracy (%) on each task at the end and on average, what was forgotten, sent and held.

    Args:
      runs: results by name.
      markdown: a Markdown table instead of aligned text.
    """
    most = max(len(results["accuracy_by_task"][-1]) for results in runs.values())
    header = ["accuracy %", *(f"task {task + 1}" for task in range(most)), "average", "forgotten", "sent up",
              "client memory", "server memory"]  # fmt: skip
    rows = []
    for name, results in runs.items():
        by_task = [*results["accuracy_by_task"][-1], *[None] * most][:most]
        memory = results["memory"]
        held = [_bytes(memory[place]) for place in ("client", "server")]
        percents = [*by_task, results["average_accuracy_by_task"], results["forgetting"]]
        sent = tables.format_bytes(run_files.total(results["bytes_up"]))
        rows.append([name, *map(_percent, percents), sent, *held])
    return tables.render(header, rows, markdown=markdown)


def _percent(value: Optional[float]) -> str:
    return tables.NO_DATA if value is None else f"{100 * value:.1f}"


def _bytes(count: int) -> str:
    return tables.format_bytes(count) if count else tables.NO_DATA


def _memory(
    options: FilVerOptions, state: RunState, domains: Domains, frozen: Optional[FrozenModel]
) -> dict[str, Optional[int]]:
    """Bytes at the end of the run; see the module. None of clients that nobody here sees."""
    image = int(np.prod(domains.image_size))
    clients = [_rows_and_bytes(state.store[client], "memory_") for client in range(len(state.store))]
    rows, held = max(clients, default=(None, None))
    if options.method == "naive-end-to-end":  # whose memory is images, and stands with the data
        rows = min(options.remembered, (options.num_tasks - 1) * options.examples_per_task)
        held = rows * (image + np.dtype(np.int32).itemsize)
    server_rows, server_held = _rows_and_bytes(_entries(state.server["finalizer"]).get("memory", {}))
    return {
        "client_rows": rows,
        "client": held,
        "client_raw_images": None if rows is None else rows * image,
        "server_rows": server_rows,
        "server": server_held,
        "server_raw_images": server_rows * image,
        "encoder": 0 if frozen is None else frozen.model.encoder.num_bytes,
    }


def _entries(state: Any) -> Mapping[str, Any]:
    """The named entries of a finalizer's state, which may have none."""
    return state if isinstance(state, Mapping) else {}


def _rows_and_bytes(held: Mapping[str, Any], prefix: str = "") -> tuple[int, int]:
    arrays = {name: np.asarray(value) for name, value in held.items() if name.startswith(prefix)}
    if not arrays:
        return 0, 0
    return len(arrays[f"{prefix}label"]), sum(array.nbytes for array in arrays.values())


def _of_original_tasks(
    options: FilVerOptions, weights: Any, domains: Domains, stream: TaskStream, frozen: Optional[FrozenModel]
) -> list[Optional[float]]:
    """The accuracy of one model on each task; None for a task without test examples."""
    data = program.OfflineDomainData(domains, stream)
    accuracies: list[Optional[float]] = []
    for task in range(stream.num_tasks):
        tested = data.test_of(task)
        if not len(tested["label"]):
            accuracies.append(None)
        elif frozen is not None:
            accuracies.append(fil_ver_models.accuracy_of(frozen.model, np.asarray(weights), tested))
        else:
            accuracies.append(_of_network(options, domains, np.asarray(weights), tested))
    return accuracies


def _of_network(
    options: FilVerOptions, domains: Domains, weights: np.ndarray, tested: Mapping[str, np.ndarray]
) -> float:
    network = fil_ver_models.build_network(options, domains)
    nothing = tf.zeros([0])
    examples = {name: tf.constant(values) for name, values in tested.items()}
    sums = evaluation.evaluated(
        network, tf.constant(weights), nothing, nothing, nothing, {"context": {}, "examples": examples}
    )
    return float(sums["correct"] / sums["count"])
