"""What a run prints when it ends: tables on stdout, and its plots."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import click

from tffcl.reports import run_files, run_plots, tables
from tffcl.reports.by_task import nll_by_task_table, plot_nll_by_task
from tffcl.reports.comparisons import compare_plots
from tffcl.reports.privacy import privacy_lines


def show(folder: Union[str, pathlib.Path]) -> None:
    """Prints the results of a run directory as tables, and draws its plots."""
    folder = pathlib.Path(folder)
    results = run_files.load_results(folder)
    click.echo(tables.results_table([results]))
    for line in privacy_lines(results):
        click.echo(line)
    click.echo()
    if "memory" in results:
        click.echo(by_task_table({str(results["method"]): results}))
    else:
        click.echo(tables.accuracy_matrix_table(results))
    if results.get("nll"):
        click.echo(f"\n{nll_by_task_table(results)}")
    plots = run_plots.write_plots(folder)
    click.echo(f"\nrun directory: {folder} ({len(plots)} plots in {folder / 'plots'})")


def report(
    folders: Sequence[str], *, markdown: bool = False, plots: bool = True, compare: Optional[str] = None
) -> None:
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
        results = [run_files.load_results(folder) for folder in folders]
        click.echo(tables.results_table(results, markdown=markdown))
        if len(results) == 1:
            click.echo(f"\n{tables.accuracy_matrix_table(results[0], markdown=markdown)}")
            if results[0].get("nll"):
                click.echo(f"\n{nll_by_task_table(results[0], markdown=markdown)}")
        for folder in folders if plots else ():
            run_plots.write_plots(folder)
            click.echo(f"plots: {pathlib.Path(folder) / 'plots'}")
        for path in [] if compare is None else _compared(folders, results, compare):
            click.echo(f"plot: {path}")


def _compared(folders: Sequence[str], results: Sequence[Mapping[str, Any]], output: str) -> Sequence[pathlib.Path]:
    """Pictures of all runs together."""
    if not any(each.get("nll") for each in results):
        return compare_plots(folders, output)
    named = {pathlib.Path(folder).name: each for folder, each in zip(folders, results)}
    return [plot_nll_by_task(named, output)]


def by_task_table(runs: Mapping[str, Mapping[str, Any]], *, markdown: bool = False) -> str:
    """A row for each run: accuracy (%) on each task at the end and on average, what was forgotten, sent and held.

    Args:
      runs: results by name.
      markdown: a Markdown table instead of aligned text.
    """
    most = max(len(results["accuracy_by_task"][-1]) for results in runs.values())
    header = ["accuracy %", *(f"task {task + 1}" for task in range(most)), "average", "forgotten", "sent up",
              "client memory", "server memory"]  # fmt: skip
    rows = []
    for name, results in runs.items():
        by_task = [*results["accuracy_by_task"][-1], *[None] * most][:most]
        memory = results["memory"]
        held = [_bytes(memory[place]) for place in ("client", "server")]
        percents = [*by_task, results["average_accuracy_by_task"], results["forgetting"]]
        sent = tables.format_bytes(run_files.total(results["bytes_up"]))
        rows.append([name, *map(_percent, percents), sent, *held])
    return tables.render(header, rows, markdown=markdown)


def _percent(value: Optional[float]) -> str:
    return tables.NO_DATA if value is None else f"{100 * value:.1f}"


def _bytes(count: Optional[int]) -> str:
    return tables.format_bytes(count) if count else tables.NO_DATA
