"""What a run prints when it ends: tables on stdout, and its plots."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, Optional, Union

import click

from tffcl.reports import run_files, run_plots, tables
from tffcl.reports.by_task import nll_by_task_table
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
