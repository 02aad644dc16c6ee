"""The command `tffcl`. TensorFlow is imported only when there is something to do, so help and errors come at once."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import click

from tffcl.commands import (
    ConFedMADEOptions,
    FedSeITOptions,
    FilVerOptions,
    confedmade_flags,
    exit_with,
    fedseit_flags,
    fil_ver_flags,
    fil_ver_tables,
)
from tffcl.commands.run_options import as_flags


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version("tffcl"), prog_name="tffcl")
def tffcl() -> None:
    """Federated continual learning on TensorFlow Federated."""


@tffcl.group()
def run() -> None:
    """Run a method on data, and leave a run directory."""


@run.command()
@fedseit_flags
def fedseit(**flags: Any) -> None:
    """FedSeIT and its baselines on text: clients with different tasks help each other without sharing data.

    Clients learn one task after another; what they learned of a task, sparse, helps others with theirs.
    """
    options = FedSeITOptions(**flags)
    from tffcl.commands import fedseit as command

    command.run(options)


@run.command()
@confedmade_flags
def confedmade(**flags: Any) -> None:
    """ConFedMADE and its baselines: clients learn densities of images or binary vectors, task after task.

    NLL in nats, in three ways: without any task label, with the task known, and with the newest parameters.
    """
    options = ConFedMADEOptions(**flags)
    from tffcl.commands import confedmade as command

    command.run(options)


@run.command("fil-ver")
@fil_ver_flags
def fil_ver(**flags: Any) -> None:
    """FIL-VER and its baselines: image classifiers meet one domain after another, on clients that come and go.

    Clients and server rehearse on embeddings of what is past, from an encoder that was frozen after the first task.
    """
    options = FilVerOptions(**flags)
    from tffcl.commands import fil_ver as command

    command.run(options)


@tffcl.group()
def reproduce() -> None:
    """Run the experiments of a paper, and put the figures beside the paper's."""


@reproduce.command("fedseit")
@click.option(
    "--dataset", "datasets", multiple=True, help="A data set; may be repeated.  [default: all five]"
)
@click.option(
    "--variant", "variants", multiple=True, help="A row of the table; may be repeated.  [default: all]"
)
@click.option(
    "--retention",
    "retentions",
    type=float,
    multiple=True,
    default=(1.0, 0.1),
    show_default=True,
    help="lambda_2.",
)
@click.option("--seed", "seeds", type=int, multiple=True, default=(1, 2), show_default=True, help="Seeds.")
@click.option(
    "--num-rounds", type=click.IntRange(min=1), default=10, show_default=True, help="Rounds a task."
)
@click.option(
    "--num-epochs", type=click.IntRange(min=1), default=50, show_default=True, help="Epochs a round."
)
@click.option("--data-dir", metavar="DIR", help="As for `tffcl run fedseit`.")
@click.option("--embeddings", metavar="FILE|NAME", help="As for `tffcl run fedseit`.")
@click.option(
    "--output-dir", default="runs/reproduce-fedseit", show_default=True, help="The folder of all runs."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at a time.")
def reproduce_fedseit(
    datasets: tuple[str, ...], variants: tuple[str, ...], retentions: tuple[float, ...], seeds: tuple[int, ...],
    num_rounds: int, num_epochs: int, data_dir: str | None, embeddings: str | None, output_dir: str, jobs: int,
) -> None:  # fmt: skip
    """Table 2 of the FedSeIT paper. Stopped and given again, it goes on where it was."""
    from tffcl.commands import reproduce_fedseit as command

    schedule = as_flags(
        {
            "num_rounds": num_rounds,
            "num_epochs": num_epochs,
            "data_dir": data_dir or None,
            "embeddings": embeddings or None,
        }
    )
    command.reproduce(
        datasets or command.DATASETS,
        variants or tuple(command.VARIANTS),
        retentions,
        seeds,
        schedule,
        output_dir,
        jobs,
    )


@reproduce.command("confedmade")
@click.option(
    "--table",
    "number",
    type=click.IntRange(1, 4),
    default=3,
    show_default=True,
    help="1: masks over clients; 2: choices of MADE; 3: all methods; 4: cut-off of the gates.",
)
@click.option(
    "--row", "rows", multiple=True, help="A row, or how rows begin; may be repeated.  [default: all]"
)
@click.option("--seed", "seeds", type=int, multiple=True, default=(1, 2), show_default=True, help="Seeds.")
@click.option("--num-rounds", type=click.IntRange(min=1), help="As for `tffcl run confedmade`.")
@click.option("--num-epochs", type=click.IntRange(min=1), help="As for `tffcl run confedmade`.")
@click.option(
    "--num-clients",
    type=click.IntRange(min=1),
    help="As for `tffcl run confedmade`, where a row does not assign its tasks; in place of those of table 1.",
)
@click.option("--data-dir", metavar="DIR", help="As for `tffcl run confedmade`.")
@click.option("--runtime", type=click.Choice(["local", "in-process"]), help="As for `tffcl run confedmade`.")
@click.option(
    "--output-dir", default="runs/reproduce-confedmade", show_default=True, help="The folder of all runs."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at a time.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS...]")
def reproduce_confedmade(
    number: int, rows: tuple[str, ...], seeds: tuple[int, ...], output_dir: str, jobs: int,
    flags: tuple[str, ...], **schedule: Any,
) -> None:  # fmt: skip
    """A table of the ConFedMADE paper. Stopped and given again, it goes on where it was.

    FLAGS after `--` are those of `tffcl run confedmade`, and stand over the table's own.
    """
    from tffcl.commands import reproduce_confedmade as command

    command.reproduce(number, rows, seeds, [*as_flags(schedule), *flags], output_dir, jobs)


@reproduce.command("fil-ver")
@click.option(
    "--table",
    "name",
    type=click.Choice(fil_ver_tables.NAMES),
    default="rotations",
    show_default=True,
    help="Domains of Fashion-MNIST; classes: MNIST and Fashion-MNIST under the same labels; enrollment: figure 8; "
    "permuted: figure 5; privacy: noise on what is sent; leak: what an attacker makes of what is sent.",
)
@click.option(
    "--row", "rows", multiple=True, help="A row, or how rows begin; may be repeated.  [default: all]"
)
@click.option("--seed", "seeds", type=int, multiple=True, default=(1, 2), show_default=True, help="Seeds.")
@click.option("--data-dir", metavar="DIR", help="As for `tffcl run fil-ver`.")
@click.option("--runtime", type=click.Choice(["local", "in-process"]), help="As for `tffcl run fil-ver`.")
@click.option(
    "--output-dir", default="runs/reproduce-fil-ver", show_default=True, help="The folder of all runs."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at a time.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- FLAGS...]")
def reproduce_fil_ver(
    name: str, rows: tuple[str, ...], seeds: tuple[int, ...], output_dir: str, jobs: int, flags: tuple[str, ...],
    **places: Any,
) -> None:  # fmt: skip
    """A table or figure of the FIL-VER paper. Stopped and given again, it goes on where it was.

    FLAGS after `--` are those of `tffcl run fil-ver`, and stand over the table's own.
    """
    from tffcl.commands import reproduce_fil_ver as command

    command.reproduce(name, rows, seeds, [*as_flags(places), *flags], output_dir, jobs)


@tffcl.command()
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN_DIR...")
@click.option("--markdown", is_flag=True, help="Tables in Markdown.")
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw RUN_DIR/plots/*.png.")
@click.option(
    "--compare",
    metavar="FILE|DIR",
    help="All runs in one picture: of densities the NLL after each task, in FILE; of classifiers two pictures in DIR, "
    "accuracy after each round and on each task at the end.",
)
def report(run_dirs: tuple[str, ...], markdown: bool, plots: bool, compare: str | None) -> None:
    """Tables and plots of finished runs."""
    from tffcl.commands import report as command

    command.report(run_dirs, markdown=markdown, plots=plots, compare=compare)


@tffcl.command()
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on; 0 for a free one.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 or :: for all."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the worker.  [default: all cores]")
@click.option(
    "--check", "address", metavar="HOST:PORT", help="Only ask whether a worker answers there: 0 or 1."
)
def worker(port: int | None, host: str, threads: int | None, address: str | None) -> int | None:
    """Run a TFF worker for `tffcl run ... --runtime remote --workers HOST:PORT,...`, until SIGTERM or Ctrl-C.

    It runs any graph that it is sent, by anybody who reaches its port.
    """
    from tffcl.commands import worker as command

    if address is not None:
        return command.check(address)
    if port is None:
        raise click.UsageError("give --port to run a worker, or --check HOST:PORT to ask whether one answers")
    command.serve(host, port, threads)
    return None


def main() -> None:
    """Entry point of the program `tffcl`."""
    exit_with(tffcl)


if __name__ == "__main__":
    main()
