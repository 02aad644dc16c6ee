"""`tffcl report`: tables and plots of run directories."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import click

from tffcl import reports


def report(folders: Sequence[str], *, markdown: bool, plots: bool) -> None:
    """Prints one table over all runs, and for a single run its accuracy matrix; draws the plots of each.

    Raises:
      InputError: a folder that holds no finished run.
    """
    results = [reports.load_results(folder) for folder in folders]
    click.echo(reports.results_table(results, markdown=markdown))
    if len(results) == 1:
        click.echo()
        click.echo(reports.accuracy_matrix_table(results[0], markdown=markdown))
    for folder in folders if plots else ():
        reports.write_plots(folder)
        click.echo(f"plots: {pathlib.Path(folder) / 'plots'}")
