"""FedRep with EWC: heads are trained first, then the shared layers, which stay near what mattered to past tasks.

Collins et al.: Exploiting Shared Representations for Personalized Federated Learning, 2021 (FedRep).
Kirkpatrick et al.: Overcoming Catastrophic Forgetting in Neural Networks, 2017 (EWC).
"""

import tffcl
from tffcl.client_works import EWC, Phase


@tffcl.method(paper="Collins et al., 2021; Kirkpatrick et al., 2017", learns=("labels",))
def fedrep_ewc(network, training, seed, aggregator=None, head_epochs: int = 2, penalty: float = 100.0):
    """FedRep whose shared layers are held by EWC.

    Args:
      head_epochs: Epochs of a round in which the head alone is trained.
      penalty: Weight of EWC.
    """
    return tffcl.algorithms.build_fed_avg(
        network,
        training=training,
        seed=seed,
        aggregator=aggregator,
        penalty=EWC(penalty),
        phases=[Phase(("local",), head_epochs), Phase(("base",))],
    )
