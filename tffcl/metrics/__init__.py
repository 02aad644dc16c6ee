"""What a continual learner achieved, forgot, sent and gave away.

Scores are plain numpy on accuracy[client][after task][task].
"""

from tffcl.metrics.client_privacy import ClientEpsilon, client_epsilon
from tffcl.metrics.communication import dense_bytes, sparse_bytes
from tffcl.metrics.densities import average_nll, base_task_nll, new_task_nll
from tffcl.metrics.leak import LinkResult, link_by_distance, link_by_likelihood
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
from tffcl.metrics.privacy import embedding_epsilon
from tffcl.metrics.reconstruction import reconstruction_r2

__all__ = [
    "ClientEpsilon",
    "LinkResult",
    "accuracy_by_task",
    "average_accuracy",
    "average_nll",
    "backward_transfer",
    "base_task_nll",
    "client_epsilon",
    "dense_bytes",
    "embedding_epsilon",
    "forgetting",
    "forward_transfer",
    "link_by_distance",
    "link_by_likelihood",
    "mean_of_known",
    "new_task_nll",
    "reconstruction_r2",
    "score_tensor",
    "sparse_bytes",
    "task_averaged_test_accuracy",
]
