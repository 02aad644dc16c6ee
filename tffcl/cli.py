"""The command `tffcl`. TensorFlow is imported only when there is something to do, so help and errors come at once."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import click

from tffcl.commands import FedSeITOptions, exit_with, fedseit_flags


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


@tffcl.command()
@click.argument("run_dirs", nargs=-1, required=True, metavar="RUN_DIR...")
@click.option("--markdown", is_flag=True, help="Tables in Markdown.")
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw RUN_DIR/plots/*.png.")
def report(run_dirs: tuple[str, ...], markdown: bool, plots: bool) -> None:
    """Tables and plots of finished runs."""
    from tffcl.commands import report as command

    command.report(run_dirs, markdown=markdown, plots=plots)


def main() -> None:
    """Entry point of the program `tffcl`."""
    exit_with(tffcl)


if __name__ == "__main__":
    main()
