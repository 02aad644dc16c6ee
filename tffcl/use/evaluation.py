"""predict and evaluate: what a run's models say of new data.

Where no task is named, it is inferred: of a classifier the task of the client whose model is surest, by the
probability p of its most probable class above chance, (p - 1/L) / (1 - 1/L) with L classes (0 for a task of one class,
whose model is sure of anything); of equally sure ones the first. Of densities the score is log of the uniform mixture
over the client's tasks, and the task the one with most density.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Optional, TextIO

import numpy as np

from tffcl import storage
from tffcl.errors import DatasetError
from tffcl.use.examples import Reader, Row, Writer

if TYPE_CHECKING:
    import pandas as pd

    from tffcl.use.finished import FinishedRun

BATCH = 256


class Predictor:
    """A client's models, of one task or of all; they are made for the first examples.

    Args:
      run: the run.
      client: number of the client.
      task: number of the task; None infers it for each example (see the module).

    Raises:
      InputError: no such client or task.
      RunError: models that cannot be read; by the first examples.
    """

    def __init__(self, run: FinishedRun, client: int, task: Optional[int] = None):
        run.check(client, 0 if task is None else task, enrolled=task is not None)
        self.tasks = run.tasks_of(client) if task is None else [task]
        self._inferred, self._run, self._client = task is None, run, client

    @functools.cached_property
    def _models(self) -> list[Any]:
        return [self._run.model(self._client, each) for each in self.tasks]

    def __call__(self, batch: Any) -> list[dict[str, Any]]:
        """For each example `label` and `probability`, or `log_density`; with `task` where it is inferred."""
        import tensorflow as tf

        given = tf.constant(batch.tolist() if batch.dtype == object else batch)
        outputs = [model(given) for model in self._models]
        if "log_density" in outputs[0]:
            return self._densities(np.stack([each["log_density"].numpy() for each in outputs]))
        sure = np.stack([_above_chance(each["probabilities"].numpy()) for each in outputs])
        chosen = sure.argmax(axis=0)
        names = [[name.decode() for name in each["label"].numpy().tolist()] for each in outputs]
        sizes = [each["probability"].numpy() for each in outputs]
        return [
            {
                "label": names[place][row],
                "probability": round(float(sizes[place][row]), 6),
                **({"task": self.tasks[place]} if self._inferred else {}),
            }
            for row, place in enumerate(chosen.tolist())
        ]

    def _densities(self, each: np.ndarray) -> list[dict[str, Any]]:
        """Of log-densities float32 [T, N]."""
        from scipy import special

        mixture = special.logsumexp(each.astype(np.float64), axis=0) - np.log(len(each))
        found = [{"log_density": round(float(value), 6)} for value in mixture]
        if self._inferred:
            found = [{**one, "task": self.tasks[place]} for one, place in zip(found, each.argmax(axis=0).tolist())]
        return found


def _above_chance(probabilities: np.ndarray) -> np.ndarray:
    """(p - 1/L) / (1 - 1/L) of the most probable of L classes, float32 [N]."""
    chance = 1.0 / probabilities.shape[1]
    return np.zeros(len(probabilities)) if chance == 1 else (probabilities.max(axis=1) - chance) / (1 - chance)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while batch := list(itertools.islice(iterator, BATCH)):
        yield batch


def predict(
    run: FinishedRun,
    path: str,
    client: int,
    task: Optional[int] = None,
    *,
    text_column: str = "text",
    format: Optional[str] = None,
    output: Optional[str] = None,
) -> int:
    """Writes the rows of new data with what a client's model says of them; rows are read and written as they come.

    Shown in docs/from-run-to-use.md.

    Args:
      run: the run.
      path: a table (.csv, .tsv, .jsonl), plain lines, arrays (.npz with `x`, .npy), or "-" for standard input.
      client: number of the client.
      task: number of the task; None infers it for each row (see the module), which adds a field `task`.
      text_column: the column or key of texts.
      format: one of csv, tsv, jsonl, lines, npz; by default what the ending says.
      output: a file, written whole or not at all; None for standard output.

    Returns:
      How many rows.

    Raises:
      InputError: no such client, task or column, a malformed row, or no rows.
    """
    reader, predictor, count = Reader(run, text_column, None, format), Predictor(run, client, task), 0

    def write(file: TextIO) -> None:
        nonlocal count
        writer: Optional[Writer] = None
        for batch in _batches(reader.rows(path)):
            writer = writer or Writer(file, reader.format, reader.columns)
            for row, added in zip(batch, predictor(reader.batch([row.example for row in batch]))):
                writer.write(row.fields, added)
            file.flush()
            count += len(batch)

    def write_bytes(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        write(text)
        text.detach()

    if output is not None:
        storage.write_whole(output, write_bytes)
        return count
    try:
        write(sys.stdout)
    except BrokenPipeError:  # whoever reads has enough; nor should Python write there when it ends
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return count


def evaluate(
    run: FinishedRun,
    path: str,
    clients: Optional[Sequence[int]] = None,
    *,
    text_column: str = "text",
    label_column: str = "label",
    format: Optional[str] = None,
) -> pd.DataFrame:
    """Scores new labelled data: each client's model of each task on the rows whose label is one of the task's.

    Densities need no labels: each of a client's tasks is scored on all rows, by its mean negative log-density in nats.

    Shown in docs/from-run-to-use.md.

    Args:
      run: the run.
      path: as for `predict`; labels are in a column, or `y` of an .npz file.
      clients: their numbers; None for all.
      text_column: the column or key of texts.
      label_column: that of labels.
      format: as for `predict`.

    Returns:
      A row for each client and task: `client`, `task`, `labels`, `rows`, and `accuracy` (missing without rows) or
      `nll`.

    Raises:
      InputError: no such client or column, a label that no task has, a malformed row, or no rows.
    """
    import pandas as pd

    density = run.scores_are == "nll"
    reader = Reader(run, text_column, None if density else label_column, format)
    rows = list(reader.rows(path))
    chosen = list(range(run.num_clients)) if clients is None else list(clients)
    pairs = [(client, task) for client in chosen for task in run.tasks_of(client)]
    known = {label for client in run.clients for task in client.tasks for label in task.labels}
    for row in rows:
        if row.label is not None and row.label not in known:
            raise DatasetError(f"{row.where}: the label {row.label!r} is in no task of the run; labels are "
                               f"{', '.join(sorted(known))[:200]}")  # fmt: skip
    lines = []
    for client, task in pairs:
        labels = run.clients[client].tasks[task].labels
        own = rows if density else [row for row in rows if row.label in labels]
        predictor, values = Predictor(run, client, task), []
        for batch in _batches(own):
            said = predictor(reader.batch([row.example for row in batch]))
            if density:
                values += [-one["log_density"] for one in said]
            else:
                values += [float(one["label"] == row.label) for one, row in zip(said, batch)]
        mean = float(np.mean(values)) if values else float("nan")
        lines.append((client, task, "+".join(labels), len(own), mean))
    return pd.DataFrame(lines, columns=["client", "task", "labels", "rows", "nll" if density else "accuracy"])
