"""Who sees what when: splits of a labelled dataset into a sequence of tasks for each client."""

from tffcl.streams.pooling import cumulative, federated_offline, offline
from tffcl.streams.sequences import assigned_sequence, in_turn, label_sequence
from tffcl.streams.splits import iid, non_iid, overlapping
from tffcl.streams.stream import Task, TaskStream

__all__ = [
    "Task",
    "TaskStream",
    "assigned_sequence",
    "cumulative",
    "federated_offline",
    "iid",
    "in_turn",
    "label_sequence",
    "non_iid",
    "offline",
    "overlapping",
]
