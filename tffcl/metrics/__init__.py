"""What a continual learner achieved, forgot and sent: plain numpy on accuracy[client][after task][task]."""

from tffcl.metrics.communication import dense_bytes, sparse_bytes
from tffcl.metrics.densities import average_nll, base_task_nll, new_task_nll
from tffcl.metrics.matrices import (
    accuracy_by_task,
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
    mean_of_known,
    score_tensor,
    task_averaged_test_accuracy,
)

__all__ = [
    "accuracy_by_task",
    "average_accuracy",
    "average_nll",
    "backward_transfer",
    "base_task_nll",
    "dense_bytes",
    "forgetting",
    "forward_transfer",
    "mean_of_known",
    "new_task_nll",
    "score_tensor",
    "sparse_bytes",
    "task_averaged_test_accuracy",
]
