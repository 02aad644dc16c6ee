"""FIL-VER: classifiers meet one domain after another, and rehearse on sampled embeddings of what is past.

    uv run examples/fil_ver_emnist.py                                 # digits of 8 x 8 pixels, no data needed
    uv run examples/fil_ver_emnist.py --data-dir DIR                  # EMNIST, Fashion-MNIST or MNIST, turned
    uv run examples/fil_ver_emnist.py --help                          # flags: those of `tffcl run fil-ver`

It runs FIL-VER beside its baselines (--method, may be repeated), and draws figures 7 and 8 of the paper: Park,
Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal, 2021.
Line numbers below are those of its algorithm 1.
"""

from __future__ import annotations

import click

import tffcl
from tffcl import algorithms, client_works, finalizers, reports, templates


@tffcl.script("fil-ver", compare=("vanilla", "ver", "ver-stats", "fil-ver"))
def main(experiments: list[tffcl.Experiment]) -> None:
    """Runs each method into OUTPUT/METHOD (lines 2-13), then prints one table and draws both figures."""
    output = experiments[-1].plan().directory()
    results = {}
    for experiment in experiments:
        plan = experiment.replace(output_dir=str(output / experiment.method.name)).plan()
        build = build_fil_ver if experiment.method.name == "fil-ver" else None
        results[experiment.method.name] = plan.run(build).to_json()
    click.echo(reports.by_task_table(results))
    for path in reports.compare_plots([output / method for method in results], output):
        click.echo(f"plot: {path}")


def build_fil_ver(plan: tffcl.Plan) -> templates.ContinualProcess:
    """FIL-VER proper, VER-Sampled with server-side training."""
    return algorithms.build_fil_ver(
        # Function ENC: the encoder learns from the first task (eq. 9) and is frozen; the clients' examples and memories
        # go through it (eq. 8).
        plan.rehearsal_model(pretrained=True, noise=False),
        # Lines 4-9: E local epochs on the new embeddings, mixed with those of the client's own past.
        training=client_works.LocalTraining(
            num_epochs=plan.num_epochs, batch_size=plan.batch_size, learning_rate=plan.learning_rate, patience=0
        ),
        client_memory=plan.client_memory,
        proximal=plan.proximal,
        # Line 10: what a client sends, each example sampled once and never again.
        sharing="sampled",
        send_per_round=plan.send_per_round,
        privacy=plan.group(algorithms.Rehearsal).privacy,
        # Line 11 is the mean weighted by examples (eq. 1). Line 12, function SST: S_max steps on all that ever came.
        aggregator=plan.aggregator(),
        server_side_training=finalizers.ServerSideTraining(
            steps=plan.sst_steps, learning_rate=plan.sst_learning_rate, memory=plan.server_memory
        ),
        seed=plan.seed,
    )


if __name__ == "__main__":
    main()
