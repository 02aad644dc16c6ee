"""Which connectivity mask a step of training stands under (ConFedMADE section 3.2)."""

from __future__ import annotations

import tensorflow as tf

from tffcl.client_works import randomness
from tffcl.client_works.training import Step
from tffcl.models.network import Network


class Connectivity:
    """M for each step of a round; built once a round, so that a mask that never changes is made once.

    The pattern of a step hangs from the plan's key, the round, the epoch and the step alone, so that clients with
    the same plan train the same submodel at the same time.

    Args:
      network: whose masks these are.
      plan: int32 `[plan_size]`, of the client.
      round_num: int32, the server's count of rounds.
    """

    def __init__(self, network: Network, plan: tf.Tensor, round_num: tf.Tensor):
        self._network, self._plan, self._round_num = network, plan, round_num
        self._fixed = network.connectivity(plan, 0) if network.num_patterns == 1 else None

    def __call__(self, step: Step) -> tf.Tensor | None:
        """float32 `[kernels.size]` of zeros and ones; None where the network has no mask."""
        if self._network.num_patterns == 1:
            return self._fixed
        key, count = self._plan[:2], self._network.num_patterns
        return self._network.connectivity(self._plan, randomness.pattern(key, self._round_num, step, count))
