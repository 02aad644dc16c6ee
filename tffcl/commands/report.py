"""`tffcl report`: tables and plots of run directories."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import click

from tffcl import reports
from tffcl.reports import run_files


def report(folders: Sequence[str], *, markdown: bool, plots: bool, compare: Optional[str] = None) -> None:
    """Prints one table over all runs, and for a single run its matrices; draws the plots of each.

    Args:
      folders: run directories.
      markdown: tables in Markdown.
      plots: whether to draw.
      compare: for densities a file for one picture of the NLL of all runs after each task, for classifiers a folder
        for two of their accuracy.

    Raises:
      InputError: a folder that holds no finished run, or other values than a run writes.
      RunError: plots that cannot be written; the tables are shown.
    """
    with run_files.reading(", ".join(map(str, folders))):
        results = [reports.load_results(folder) for folder in folders]
        click.echo(reports.results_table(results, markdown=markdown))
        if len(results) == 1:
            click.echo(f"\n{reports.accuracy_matrix_table(results[0], markdown=markdown)}")
            if results[0].get("nll"):
                click.echo(f"\n{reports.nll_by_task_table(results[0], markdown=markdown)}")
        for folder in folders if plots else ():
            reports.write_plots(folder)
            click.echo(f"plots: {pathlib.Path(folder) / 'plots'}")
        for path in [] if compare is None else _compared(folders, results, compare):
            click.echo(f"plot: {path}")


def _compared(
    folders: Sequence[str], results: Sequence[Mapping[str, Any]], output: str
) -> Sequence[pathlib.Path]:
    """Pictures of all runs together."""
    if not any(one.get("nll") for one in results):
        return reports.compare_plots(folders, output)
    named = {pathlib.Path(folder).name: one for folder, one in zip(folders, results)}
    return [reports.plot_nll_by_task(named, output)]
