"""FedSeIT on TREC: clients learn one task after another, and help each other without sharing data.

    uv run examples/fedseit_trec.py                                   # with whatever data are at hand
    uv run examples/fedseit_trec.py --data-dir DIR --selection sit    # real TREC, selective transfer (SIT)
    uv run examples/fedseit_trec.py --help                            # flags: those of `tffcl run fedseit`

Without data it takes the small sample that ships with tffcl, and ends within minutes.

Chaudhary, Rai, Schubert, Schuetze, Gupta: Federated Continual Learning for Text Classification via Selective
Inter-client Transfer, 2022. Line numbers below are those of its algorithm 1.
"""

from __future__ import annotations

import tffcl
from tffcl import algorithms, client_works, models, reports, templates


@tffcl.script("fedseit")
def main(experiment: tffcl.Experiment) -> None:
    """Divides the data into tasks, lets the clients learn them (lines 3-4), and prints the results."""
    plan = experiment.plan()
    results = plan.run(build_fedseit if experiment.method.name == "fedseit" else None)
    reports.show(results.directory)


def build_fedseit(plan: tffcl.Plan) -> templates.ContinualProcess:
    """What clients and server do in a round: lines 5-15."""
    # Kernels are base * mask + adaptive (eq. 1), beside the aligned adaptives of others (eq. 2-3). Which of them arrive
    # is the transfer's choice: lines 16-24.
    sizes = models.TextCNNConfig(embedding_size=plan.input_shape[0], max_classes=plan.labels_per_task)
    network = models.AlignedTextCNN(sizes, plan.transfer.num_foreign(plan.num_clients))
    return algorithms.build_fedseit(
        network,
        training=client_works.LocalTraining(
            num_epochs=plan.num_epochs,
            batch_size=plan.batch_size,
            learning_rate=plan.learning_rate,
            patience=plan.patience,
        ),
        decomposition=client_works.Decomposition(
            sparsity=plan.sparsity,  # lambda_1 of eq. 5: what is sent stays sparse
            retention=plan.retention,  # lambda_2 of eq. 5: past tasks stay as they were
            share_dense=plan.share_dense,  # DLS
        ),
        aggregator=plan.aggregator(),  # the mean over the senders, unless --dp-base-clip asks for noise
        seed=plan.seed,
    )


if __name__ == "__main__":
    main()
