"""How the NLL of a continual learner goes, task after task (ConFedMADE, appendix B.3, figures 3 and 5).

Every function takes nats [C, T, T], `nll[c][t][i]` = NLL of client c on its task i after it learned task t, as
`tffcl.metrics.matrices` does, and gives a value for the time after each task. How much is forgotten says
`forgetting(nll, higher_is_better=False)`.

Paul, Frey, Kamath, Kersting, Mundt: Masked Autoencoders are Efficient Continual Federated Learners, 2023.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tffcl.metrics.matrices import mean_of_known, mean_so_far, score_tensor


def average_nll(nll: ArrayLike) -> np.ndarray:
    """N_t after each task t: mean over clients and over the tasks i <= t seen by then, float64 [T].

    >>> average_nll([[80.0, None], [84.0, 90.0]]).tolist()
    [80.0, 87.0]

    Raises:
      InputError: `nll` is not [C, T, T].
    """
    return mean_so_far(score_tensor(nll, "nll"))


def base_task_nll(nll: ArrayLike) -> np.ndarray:
    """B_t = n[t, 0] after each task t: the first task's, mean over clients, float64 [T]; its rise is forgetting.

    >>> base_task_nll([[80.0, None], [84.0, 90.0]]).tolist()
    [80.0, 84.0]

    Raises:
      InputError: `nll` is not [C, T, T].
    """
    tensor = score_tensor(nll, "nll")
    return np.array([mean_of_known(tensor[:, t, 0]) for t in range(tensor.shape[1])])


def new_task_nll(nll: ArrayLike) -> np.ndarray:
    """n[t, t] after each task t: the newest task's, mean over clients, float64 [T].

    >>> new_task_nll([[80.0, None], [84.0, 90.0]]).tolist()
    [80.0, 90.0]

    Raises:
      InputError: `nll` is not [C, T, T].
    """
    tensor = score_tensor(nll, "nll")
    return np.array([mean_of_known(tensor[:, t, t]) for t in range(tensor.shape[1])])
