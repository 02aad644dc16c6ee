"""Who sees what when: splits of a labelled dataset into a sequence of tasks for each client."""

from tffcl.streams.domain_sequence import domain_sequence
from tffcl.streams.enrollment import Enrollment, EnrollmentState
from tffcl.streams.fewer_tests import fewer_tests
from tffcl.streams.pooling import cumulative, federated_offline, offline
from tffcl.streams.sequences import assigned_sequence, in_turn, label_sequence
from tffcl.streams.splits import iid, non_iid, overlapping
from tffcl.streams.stream import Task, TaskStream

__all__ = [
    "Enrollment",
    "EnrollmentState",
    "Task",
    "TaskStream",
    "assigned_sequence",
    "cumulative",
    "domain_sequence",
    "federated_offline",
    "fewer_tests",
    "iid",
    "in_turn",
    "label_sequence",
    "non_iid",
    "offline",
    "overlapping",
]
