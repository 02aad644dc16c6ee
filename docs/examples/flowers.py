"""A table of one's own, and a scenario: clients walk through the labels, each from another start."""

import pandas as pd

from tffcl import datasets, streams


def load(path: str = "flowers.csv", label: str = "species") -> datasets.ArrayDataset:
    """A table of numbers; every third row is for testing.

    Args:
      path: The table, in CSV.
      label: Its column of labels.
    """
    table = pd.read_csv(path)
    tested = table.index % 3 == 2
    return datasets.from_frames(table[~tested], table[tested], label=label, name="flowers")


def walk(train_labels, test_labels, num_clients, num_tasks, seed, label_names, width: int = 2) -> streams.TaskStream:
    """Client c learns labels c + t, c + t + 1, ... in task t.

    Args:
      width: Labels of a task.
    """
    count = len(label_names)
    tasks = [
        [sorted({(client + task + step) % count for step in range(width)}) for task in range(num_tasks)]
        for client in range(num_clients)
    ]
    return streams.assigned_sequence(train_labels, test_labels, tasks, seed=seed, label_names=label_names)
