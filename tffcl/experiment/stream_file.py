"""A stream as one .npz file, for other code: every row that clients get, with its client and task.

For each split, train, validation and test, of N rows:

x_SPLIT       [N, ...], examples as the network takes them: pixels in [0, 1], columns; of text int32 [N, L], rows of
              `vectors`, 0 behind a document's end
y_SPLIT       int32 [N], places in `label_names`; not of a density
client_SPLIT  int32 [N], from 0; -1 for test rows of a task that are the same for all clients, which stand once
task_SPLIT    int32 [N], from 0

label_names   the data set's
vectors       float32 [V, D], the word vectors of text; row 0 is zero
config        the options, as JSON
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tffcl import archive, errors
from tffcl.program.client_data import SPLITS, ClientTask

if TYPE_CHECKING:
    from tffcl.experiment.plan import Plan


def export_stream(plan: Plan, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Writes the stream of a plan, before its method pools any of it; returns the arrays.

    Raises:
      InputError: the file's name does not end in .npz.
      RunError: the file cannot be written.
    """
    if not os.fspath(path).endswith(".npz"):
        raise errors.InputError(f"{os.fspath(path)}: expected a name that ends in .npz")
    data, found = plan.client_data(plan.stream), defaultdict(list)
    for task in range(data.num_tasks):
        each = [_rows(plan, data.task(client, task), client, task) for client in range(data.num_clients)]
        for split in SPLITS:
            own = [(client, rows[split]) for client, rows in enumerate(each) if len(rows[split]["x"])]
            same = split == "test" and len(own) > 1 and all(_equal(own[0][1], rows) for _, rows in own)
            for client, rows in [(-1, own[0][1])] if same else own:
                found[split].append({**rows, **_numbers(len(rows["x"]), client=client, task=task)})
    nothing = {split: each[0][split] for split in SPLITS}
    arrays: dict[str, np.ndarray] = {}
    for split in SPLITS:
        parts = found[split] or [{**nothing[split], **_numbers(0, client=0, task=0)}]
        for name in parts[0]:
            arrays[f"{name}_{split}"] = np.concatenate(_padded([part[name] for part in parts]))
    arrays["label_names"] = np.array([str(name) for name in getattr(plan.dataset, "label_names", ())], np.str_)
    if plan.kind == "text":
        arrays["vectors"] = np.asarray(plan.dataset.embedding, np.float32)
    arrays["config"] = np.array(json.dumps(plan.config(), default=str))
    archive.write(path, arrays)
    return arrays


def _rows(plan: Plan, one: ClientTask, client: int, task: int) -> dict[str, dict[str, np.ndarray]]:
    """Examples and labels, `x` and `y`, of each split."""
    made: dict[str, dict[str, np.ndarray]] = {}
    for split in SPLITS:
        examples: Any = getattr(one, split)
        if plan.kind == "text":
            rows = getattr(plan.stream.task(client, task), split)
            documents = plan.dataset.test_tokens if split == "test" else plan.dataset.train_tokens
            x = documents.take(rows).padded()
        else:
            x = next(values for name, values in examples.items() if name != "label")
        made[split] = {"x": np.asarray(x)}
        if "label" in examples:
            labels = np.asarray(examples["label"], np.int32)
            made[split]["y"] = np.asarray(one.labels, np.int32)[labels] if one.labels else labels
    return made


def _numbers(count: int, **values: int) -> dict[str, np.ndarray]:
    return {name: np.full(count, value, np.int32) for name, value in values.items()}


def _equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def _padded(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Documents of different sets are as wide as the widest."""
    if arrays[0].ndim != 2:
        return arrays
    widest = max(array.shape[1] for array in arrays)
    return [np.pad(array, [(0, 0), (0, widest - array.shape[1])]) for array in arrays]
