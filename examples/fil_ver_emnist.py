"""FIL-VER on images: clients meet one domain after another and rehearse, at home and at the server, on embeddings.

    uv run examples/fil_ver_emnist.py                        # the four systems of figure 7, on what data are at hand
    uv run examples/fil_ver_emnist.py --data-dir DIR         # EMNIST balanced, Fashion-MNIST or MNIST in DIR
    uv run examples/fil_ver_emnist.py --method ebr --method offline
    uv run examples/fil_ver_emnist.py --help                 # all flags: those of `tffcl run fil-ver`

Without data it takes scikit-learn's digits of 8 x 8 pixels, turned by 0, 90, 180 and 270 degrees, and ends within four
minutes.

Park, Kumatani, Dimitriadis: Tackling Dynamics in Federated Incremental Learning with Variational Embedding Rehearsal,
2021. Line numbers below are those of its algorithm 1.
"""

from __future__ import annotations

import dataclasses

import click

from tffcl.commands import FilVerOptions, exit_with, fil_ver_flags_without_method
from tffcl.commands.fil_ver_flags import OFFLINE, SHARED

FIGURE_7 = ("vanilla", "ver", "ver-stats", "fil-ver")


@click.command(help=__doc__.partition("\n")[0])
@click.option(
    "--method", "methods", type=click.Choice((*SHARED, *OFFLINE)), multiple=True, default=FIGURE_7, show_default=True,
    help="What to run; may be repeated.",
)  # fmt: skip
@fil_ver_flags_without_method
def main(methods, **flags) -> None:
    """Runs each method into OUTPUT/METHOD, then prints one table and draws figures 7 and 8."""
    options = FilVerOptions(method="fil-ver", **flags)

    from tffcl.commands import fil_ver_data, running  # once the flags are known to be right

    # The same labels in every task, on other images; who is enrolled when (section 4); the clients' examples.
    domains, options = fil_ver_data.load_domains(options)
    enrollment = fil_ver_data.load_enrollment(options)
    stream = fil_ver_data.split(options, domains, enrollment)
    output = running.choose_directory(options, f"{options.dataset}-{options.domains}")

    from tffcl import reports
    from tffcl.commands import fil_ver, fil_ver_models, fil_ver_results

    frozen, results = {}, {}
    with running.open_runtime(options):
        for method in methods:
            one, folder = dataclasses.replace(options, method=method), output / method
            # The encoder learns from the first task (eq. 9) and is frozen: one VEE, or EBR encoder, for all methods.
            kind = (one.variational, method == "offline-end-to-end")
            if kind not in frozen:
                frozen[kind] = fil_ver_models.model_of(one, domains, stream, folder)
            if method == "fil-ver":
                process = build_fil_ver(one, frozen[kind].model)
            else:
                process = fil_ver.build_process(one, domains, frozen[kind])

            # All tasks and rounds: lines 2-13. Every round leaves a checkpoint.
            fil_ver.learn(one, process, domains, stream, enrollment, frozen[kind], folder)
            fil_ver_results.complete(folder, one, process, domains, stream, frozen[kind])
            results[method] = reports.load_results(folder)
    click.echo(fil_ver_results.by_task_table(results))
    for path in reports.compare_plots([output / method for method in results], output):
        click.echo(f"plot: {path}")


def build_fil_ver(options: FilVerOptions, model):
    """The process of FIL-VER proper, VER-Sampled with server-side training."""
    from tffcl import algorithms, finalizers
    from tffcl.commands import base_privacy, fil_ver

    return algorithms.build_fil_ver(
        # Function ENC: the frozen encoder, which the clients' examples and memories go through (eq. 8).
        model,
        # Lines 4-9: E local epochs on the new embeddings, mixed with those of the client's own past.
        training=fil_ver.training_of(options),
        client_memory=options.client_memory,
        proximal=options.proximal,
        # Line 10: what a client sends, each example sampled once and never again.
        sharing="sampled",
        send_per_round=options.send_per_round,
        privacy=fil_ver.privacy_of(options),
        # Line 11 is the mean weighted by examples (eq. 1), or with --dp-base-clip one with noise. Line 12, function
        # SST: S_max steps on all that ever came.
        server_side_training=finalizers.ServerSideTraining(
            steps=options.sst_steps, learning_rate=options.sst_learning_rate, memory=options.server_memory
        ),
        seed=options.seed,
        **base_privacy.aggregator_of(options),
    )


if __name__ == "__main__":
    exit_with(main, "fil_ver_emnist.py")
