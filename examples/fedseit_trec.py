"""FedSeIT on TREC beside its controls: clients learn one task after another, and help each other without sharing data.

    uv run examples/fedseit_trec.py                                   # with whatever data are at hand
    uv run examples/fedseit_trec.py --data-dir DIR --selection sit    # real TREC, selective transfer (SIT)
    uv run examples/fedseit_trec.py --help                            # flags: those of `tffcl run fedseit`

Without data it takes the small sample that ships with tffcl, and ends within minutes.

Chaudhary, Rai, Schubert, Schuetze, Gupta: Federated Continual Learning for Text Classification via Selective
Inter-client Transfer, 2022. Line numbers below are those of its algorithm 1.
"""

from __future__ import annotations

import dataclasses

import numpy as np

import tffcl
from tffcl import algorithms, client_works, models, reports, templates

QUESTIONS = np.array(["Who painted the ceiling of the chapel?", "What color is the sky on Mars?"])


@tffcl.script("fedseit")
def main(experiment: tffcl.Experiment) -> None:
    """Each method into OUTPUT/METHOD (lines 3-4), then one table, and what the model says to two questions."""
    if experiment.method.name == "fedseit" and "share_dense" not in experiment.given:
        experiment = experiment.replace(share_dense="start")  # a task begins with what others know of its labels
    # The same network where nothing is exchanged, and federated averaging, which has one set of weights for all tasks.
    controls = experiment.control("alone", share_dense="no", warm_start=True), experiment.control("fedavg")
    output = experiment.plan().directory()
    methods = {each.method.name: each for each in (*controls, experiment)}
    for name, each in methods.items():
        each.replace(output_dir=str(output / name)).plan().run(build_fedseit if name == "fedseit" else None)
    folder = output / experiment.method.name
    reports.show(folder)
    print()
    print(reports.methods_table(reports.rows_of(reports.find_runs([output])), against="alone+warm"))
    reports.compare_plots([output / name for name in methods], output)
    answers = tffcl.load_run(folder).model(client=0, task=experiment.num_tasks - 1)(QUESTIONS)
    for question, label, probability in zip(QUESTIONS, answers["label"].numpy(), answers["probability"].numpy()):
        print(f"\n{question} -> {label.decode()} ({probability:.2f})")


def build_fedseit(plan: tffcl.Plan) -> templates.ContinualProcess:
    """What clients and server do in a round: lines 5-15."""
    # Kernels are base * mask + adaptive (eq. 1), beside the aligned adaptives of others (eq. 2-3), which the transfer
    # chooses: lines 16-24.
    sizes = dict(embedding_size=plan.input_shape[0], max_classes=plan.num_classes)
    sizes = dataclasses.replace(plan.group(models.TextCNNConfig), **sizes)
    network = models.AlignedTextCNN(sizes, plan.transfer.num_foreign(plan.num_clients))
    if plan.label_mask:  # the head has a column for each label of the data; a task's own compete
        network = models.with_label_mask(network)
    return algorithms.build_fedseit(
        network,
        training=plan.training,  # epochs, batches, learning rate
        # lambda_1 of eq. 5 keeps sparse what is sent, lambda_2 keeps past tasks as they were; head and projections
        # begin as the server's, aligned by label.
        decomposition=plan.group(client_works.Decomposition),
        aggregator=plan.aggregator(),  # the mean over the senders, unless --dp-base-clip asks for noise
        seed=plan.seed,
    )


if __name__ == "__main__":
    main()
