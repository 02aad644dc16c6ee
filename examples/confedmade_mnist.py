"""ConFedMADE on digits: clients learn densities, task after task, under one autoregressive mask from the server.

    uv run examples/confedmade_mnist.py                                    # digits of 8 x 8 pixels, no data needed
    uv run examples/confedmade_mnist.py --data-dir DIR --method finetune   # MNIST; a baseline
    uv run examples/confedmade_mnist.py --help                             # flags: those of `tffcl run confedmade`

Paul, Hong, Yu, Kersting, Mundt: Masked Autoencoders are Efficient Continual Federated Learners, 2023. Line numbers
below are those of its algorithm 1.
"""

from __future__ import annotations

import dataclasses

import tffcl
from tffcl import algorithms, client_works, models, reports, templates


@tffcl.script("confedmade")
def main(experiment: tffcl.Experiment) -> None:
    """Pictures as rows of zeros and ones, a digit a task (lines 4 and 8); prints NLL in nats."""
    plan = experiment.plan()
    results = plan.run(build_confedmade if experiment.method.name == "confedmade" else None)
    reports.show(results.directory)


def build_confedmade(plan: tffcl.Plan) -> templates.ContinualProcess:
    """What clients and server do in a round: lines 9-15."""
    # Kernels are (base * mask + adaptive + sum of attention * foreign adaptive) * M (eq. 5); M hangs from the server's
    # seed and order, the same at every client (eq. 4, lines 2 and 3). Foreign adaptives arrive at a task's start
    # (lines 6 and 10).
    sizes = dataclasses.replace(plan.group(models.MADEConfig), input_size=plan.input_shape[0])
    return algorithms.build_confedmade(
        sizes,
        num_foreign=plan.transfer.num_foreign(plan.num_clients),
        training=client_works.LocalTraining(
            num_epochs=plan.num_epochs,
            batch_size=plan.batch_size,
            learning_rate=plan.learning_rate,
            patience=plan.patience,
        ),
        decomposition=client_works.Decomposition(
            sparsity=plan.sparsity,  # lambda_1 of eq. 6: what is sent stays sparse
            retention=plan.retention,  # lambda_2 of eq. 6: past tasks stay as they were
            adaptive_factor=plan.adaptive_factor,  # line 7: A starts at B / f
            gate_cutoff=plan.gate_cutoff,  # line 14: B goes to the server where the mask and M let it through
        ),
        aggregator=plan.aggregator(),  # the mean over the senders, unless --dp-base-clip asks for noise
        seed=plan.seed,
    )


if __name__ == "__main__":
    main()
