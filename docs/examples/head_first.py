"""FedAvg whose clients train the head alone in the first rounds: what depends on the round."""

import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tffcl import aggregators, client_works, finalizers, templates


class HeadFirst(client_works.PlainWork):
    """FedAvg's client; in the first rounds no gradient reaches the shared layers."""

    head_rounds = 1

    def step_loss(self, values, rows, step, here):
        base = tf.where(here.number < self.head_rounds, tf.stop_gradient(values["base"]), values["base"])
        return super().step_loss({**values, "base": base}, rows, step, here)


@tffcl.method(learns=("labels",))
def head_first(network, training, seed, aggregator=None, head_rounds: int = 1):
    """FedAvg whose clients train the head alone in the first rounds of the run.

    Args:
      head_rounds: Rounds in which the shared layers stand still.
    """
    work = HeadFirst(network, training, seed)
    work.head_rounds = head_rounds
    mean = aggregators.gated(aggregator or tff.aggregators.MeanFactory(no_nan_division=True))
    return templates.compose_continual_process(work, mean, finalizers.build_server_update(work.shared_type))
