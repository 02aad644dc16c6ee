"""Who sees what when: splits of a labelled dataset into a sequence of tasks for each client."""

from tffcl.streams.splits import iid, non_iid, overlapping
from tffcl.streams.stream import Task, TaskStream

__all__ = ["Task", "TaskStream", "iid", "non_iid", "overlapping"]
