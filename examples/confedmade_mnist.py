"""ConFedMADE on digits: clients learn densities of one digit after another, and help each other without sharing data.

    uv run examples/confedmade_mnist.py                                 # with whatever data are at hand
    uv run examples/confedmade_mnist.py --data-dir DIR                  # MNIST
    uv run examples/confedmade_mnist.py --help                          # all flags: those of `tffcl run confedmade`

Without data it takes scikit-learn's digits of 8 x 8 pixels, and ends within two minutes.

Paul, Frey, Kamath, Kersting, Mundt: Masked Autoencoders are Efficient Continual Federated Learners, 2023. Line
numbers below are those of its algorithm 2.
"""

from __future__ import annotations

import click

from tffcl.commands import ConFedMADEOptions, confedmade_flags, exit_with


@click.command(help=__doc__.partition("\n")[0])
@confedmade_flags
def main(**flags) -> None:
    """Runs ConFedMADE, or with --method one of its baselines."""
    options = ConFedMADEOptions(**flags)

    from tffcl.commands import confedmade, running, vector_data  # once the flags are known to be right

    # Pictures as rows of zeros and ones. Labels serve to make tasks; nothing is trained with them.
    vectors, options = vector_data.load_vectors(options)

    # Who learns what, and when: by default each task is a single digit.
    stream = vector_data.split(options, vectors)
    folder = running.choose_directory(options, vectors.name)

    from tffcl import program
    from tffcl.commands import made_results

    # What a client receives of the others' knowledge for a task: lines 6 and 10.
    transfer = confedmade.build_transfer(options)

    # What clients and server do in a round: lines 9-15.
    if options.method == "confedmade":
        process = build_confedmade(options, vectors.width, transfer.num_foreign(options.num_clients))
    else:
        process = confedmade.build_process(options, vectors.width, transfer)

    # All tasks and rounds: lines 4 and 8. Every round leaves a checkpoint.
    data = program.DensityClientData(vectors, vector_data.pooled(options.method, stream))
    with running.open_runtime(options):
        config = confedmade.config_of(options, vectors, stream)
        running.learn(options, process, data, transfer, folder, config)
        made_results.complete(folder, options, process, vectors, stream)
    running.show(folder)


def build_confedmade(options: ConFedMADEOptions, input_size: int, num_foreign: int):
    """The process: kernel = (base * mask + adaptive + sum of attention * foreign adaptive) * M (eq. 5)."""
    from tffcl import algorithms
    from tffcl.commands import base_privacy, confedmade

    return algorithms.build_confedmade(
        # Lines 2 and 3: M from the server's seed and order, the same at every client (eq. 4).
        confedmade.made_config(options, input_size),
        num_foreign=num_foreign,
        training=confedmade.training_of(options),
        # Eq. 6: lambda_1 keeps sparse what is sent, lambda_2 keeps past tasks as they were. Line 7: A starts at B / f.
        # Line 14: B goes to the server where the mask and M let it through.
        decomposition=confedmade.decomposition_of(options),
        seed=options.seed,
        # The mean over the senders, unless --dp-base-clip asks for noise.
        **base_privacy.aggregator_of(options),
    )


if __name__ == "__main__":
    exit_with(main, "confedmade_mnist.py")
