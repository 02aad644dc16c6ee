"""The command `tffcl`. TensorFlow is imported only when there is something to do, so help and errors come at once."""

from __future__ import annotations

from importlib import metadata

import click

from tffcl.console import exit_with
from tffcl.flags import RunGroup


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version("tffcl"), prog_name="tffcl")
def tffcl() -> None:
    """Federated continual learning on TensorFlow Federated."""


@tffcl.group(cls=RunGroup)
def run() -> None:
    """Run a method on data, and leave a run directory."""


def main() -> None:
    """Entry point of the program `tffcl`."""
    exit_with(tffcl)


if __name__ == "__main__":
    main()
