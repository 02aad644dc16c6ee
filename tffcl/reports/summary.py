"""What a run directory gives when its run ends: tables on stdout, all plots, and runs held against each other."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import click
import psutil

from tffcl import storage
from tffcl.errors import InputError
from tffcl.program import trackers
from tffcl.reports import page, runs
from tffcl.reports.curves import (
    clients_of,
    has_accuracy,
    plot_accuracy_bars,
    plot_accuracy_by_round,
    plot_accuracy_per_round,
    plot_average_so_far,
    plot_communication,
    plot_nll_by_task,
)
from tffcl.reports.figures import attention_of, load_samples, plot_accuracy_matrix, plot_attention, plot_samples
from tffcl.reports.runs import load_history, load_results, reading
from tffcl.reports.tables import accuracy_matrix_table, by_task_table, nll_by_task_table, privacy_lines, results_table
from tffcl.storage import PathLike

MOST_CLIENTS = 10  # with a picture of their own
BY_ROUND, BY_TASK = "accuracy-by-round", "accuracy-by-task"


def show(folder: Union[str, pathlib.Path], plot_format: str = "png") -> None:
    """Prints the results of a run directory as tables, and draws its plots.

    Shown in examples/confedmade_mnist.py.
    """
    folder = pathlib.Path(folder)
    results = load_results(folder)
    click.echo(results_table([results]))
    for line in privacy_lines(results):
        click.echo(line)
    click.echo()
    if "memory" in results:
        click.echo(by_task_table({str(results["method"]): results}))
    else:
        click.echo(accuracy_matrix_table(results))
    if results.get("nll"):
        click.echo(f"\n{nll_by_task_table(results)}")
    plots = write_plots(folder, plot_format)
    whole = time.time() - psutil.Process().create_time()
    click.echo(f"\nrun directory: {folder} ({len(plots)} plots in {folder / 'plots'}); {whole:.0f} s since the start")


def report(
    folders: Sequence[PathLike],
    *,
    group_by: str = "method",
    against: Optional[str] = None,
    form: Optional[str] = None,
    output: Optional[PathLike] = None,
    plots: Optional[bool] = None,
    plot_format: str = "png",
    compare: Optional[PathLike] = None,
) -> None:
    """Tables over the runs in folders, on stdout or in a file; pictures where they are asked for.

    A run by itself has its own table and matrices; several are grouped by method, seeds averaged.

    Args:
      folders: run directories, and folders that hold some.
      group_by: "method", or "run" for a row of its own for each.
      against: the row that the others are compared with.
      form: one of `FORMS`; None for what the name of `output` ends in, else text.
      output: the file to write to; None for stdout.
      plots: whether each finished run gets its `plots/`; None for a single run alone.
      plot_format: "png", "svg" or "pdf".
      compare: for densities a file for one picture of the NLL of all runs after each task, for classifiers a folder for
        pictures of their accuracy, over seeds where a row has several.

    Raises:
      InputError: a folder without a run, other values than a run writes, or a row that is not there.
      RunError: a file that cannot be written; with `output` None the tables are shown.
    """
    with reading(", ".join(map(str, folders))):
        found = runs.find_runs(folders)
        form = form or _FORM_OF.get(pathlib.Path(output or "").suffix.lower(), "text")
        single = len(found) == 1 and found[0].finished and against is None
        rows = runs.rows_of(found, group_by)
        if form == "html":
            text = page.page(rows, against=against)
        elif single:
            text = _single(found[0].results, form)
        else:
            tables = (
                runs.methods_table(rows, against=against, form=form), runs.unfinished_table(rows, form=form),
                runs.differences_table(rows, form=form) if len(rows) > 1 else "",
            )  # fmt: skip
            text = "\n\n".join(filter(None, tables))
        if output is None:
            click.echo(text)
        else:
            storage.write_whole(output, f"{text}\n".encode())
            click.echo(f"report: {output}")
        finished = [run.folder for run in found if run.finished]
        for folder in finished if plots or (plots is None and single and output is None) else ():
            write_plots(folder, plot_format)
            click.echo(f"plots: {folder / 'plots'}")
        paths: list[pathlib.Path] = []
        if compare is not None and any(load_results(folder).get("nll") for folder in finished):
            named = {folder.name: load_results(folder) for folder in finished}
            paths = [plot_nll_by_task(named, compare)]
        elif compare is not None and any(len(row.finished) > 1 for row in rows):
            paths = _compare_rows(rows, pathlib.Path(compare), plot_format)
        elif compare is not None:
            paths = compare_plots(finished, compare, plot_format)
        for path in paths:
            click.echo(f"plot: {path}")


_FORM_OF = {".html": "html", ".htm": "html", ".md": "markdown", ".tex": "latex"}


def _single(results: Mapping[str, Any], form: str) -> str:
    tables = [results_table([results], form=form), accuracy_matrix_table(results, form=form)]
    if results.get("nll"):
        tables.append(nll_by_task_table(results, form=form))
    return "\n\n".join(tables)


def write_plots(run_dir: PathLike, plot_format: str = "png") -> list[pathlib.Path]:
    """Writes `plots/` in a run directory, each picture whole or not at all, and shows PNGs on its TensorBoard.

    What needs `results.json` or `samples.npz` is left out while the run has not ended. Of more than ten clients, the
    last ten get a picture of accuracy per round.

    Shown with `show`.

    Returns:
      The paths written.

    Raises:
      InputError: no history, or one without a round, a damaged file, or no such format.
      RunError: the disk is full, or the folder cannot be written to.
    """
    with reading(run_dir):
        paths = _write_plots(pathlib.Path(run_dir), plot_format)
        _show_on_board(pathlib.Path(run_dir), paths)
    return paths


def _show_on_board(run_dir: pathlib.Path, paths: Sequence[pathlib.Path]) -> None:
    """Puts the PNGs among `paths` into TensorBoard's folder, in the place of those that are there."""
    folder, pngs = run_dir / "tensorboard", [path for path in paths if path.suffix == ".png"]
    if folder.is_dir() and pngs:
        records = [trackers.picture(path.stem, path.read_bytes()) for path in pngs]
        for old in folder.glob(f"events.out.tfevents.*{trackers.PICTURES}"):
            old.unlink()
        storage.write_whole(folder / trackers.file_name(trackers.PICTURES), trackers.header() + b"".join(records))


def _write_plots(run_dir: pathlib.Path, form: str) -> list[pathlib.Path]:
    def path(name: str) -> pathlib.Path:
        return run_dir / "plots" / f"{name}.{form}"

    history = load_history(run_dir)
    if not any(event.get("event") == "round" for event in history):
        raise InputError(f"{run_dir / 'history.jsonl'} holds no round yet; nothing to plot")
    paths = [plot_communication(history, path("communication"))]
    what = "accuracy" if has_accuracy(history) else "nll"
    for client in clients_of(history)[-MOST_CLIENTS:]:
        paths.append(plot_accuracy_per_round(history, path(f"{what}-by-round-client-{client + 1}"), client=client))
    results = load_results(run_dir) if (run_dir / "results.json").exists() else {}
    method, shared_names = str(results.get("method") or ""), task_names([results])
    if has_accuracy(history):
        paths.append(plot_accuracy_by_round({method: history}, path(BY_ROUND), names=shared_names))
    if results.get("accuracy"):
        paths.append(plot_accuracy_bars([results], [method or "accuracy"], path(BY_TASK), names=shared_names))
    names = (results.get("config") or {}).get("tasks")
    if results:
        paths.append(plot_accuracy_matrix(results, path("nll-matrix" if results.get("nll") else "accuracy-matrix")))
    if results.get("nll"):
        paths.append(plot_nll_by_task(results, path("nll-by-task")))
    if attention_of(history):
        paths.append(plot_attention(history, path("attention"), names=names))
    if (run_dir / "samples.npz").exists():
        paths.append(plot_samples(load_samples(run_dir), path("samples"), names=names))
    return paths


def compare_plots(folders: Sequence[PathLike], output: PathLike, plot_format: str = "png") -> list[pathlib.Path]:
    """Accuracy of several runs by round, a panel for each, and by task, a bar for each (FIL-VER, figures 7 and 8).

    Runs that learned all tasks pooled (offline) are lines to hold the others against, unless there are no others.
    A run is called by its method, and by its folder too where several share a method.

    Shown in examples/fil_ver_emnist.py.

    Args:
      folders: run directories.
      output: the folder to write to.
      plot_format: "png", "svg" or "pdf".

    Returns:
      The paths written; the picture by round is left out where no run was scored after each round.

    Raises:
      InputError: no folders, or one without a finished run with accuracy.
      RunError: the disk is full, or the folder cannot be written to.
    """
    if not folders:
        raise InputError("compare_plots needs at least one run directory, got none")
    loaded = [load_results(folder) for folder in folders]
    results = dict(zip(_labels(folders, loaded), loaded))
    references = {label: one for label, one in results.items() if runs.is_pooled(one)}
    if len(references) == len(results):
        references = {}
    shown = {label: one for label, one in results.items() if label not in references}
    names, output = task_names(loaded), pathlib.Path(output)
    paths = [
        plot_accuracy_bars(
            list(shown.values()), list(shown), output / f"{BY_TASK}.{plot_format}", names=names, references=references
        )
    ]
    histories = {label: load_history(folder) for label, folder in zip(results, folders) if label not in references}
    scored = {label: history for label, history in histories.items() if has_accuracy(history)}
    if scored:
        paths.append(
            plot_accuracy_by_round(scored, output / f"{BY_ROUND}.{plot_format}", names=names, references=references)
        )
    return paths


def _compare_rows(rows: Sequence[runs.Row], output: pathlib.Path, form: str) -> list[pathlib.Path]:
    """Mean accuracy on the tasks so far, and on each task at the end, a line and a bar for each row over its seeds."""
    ended = [runs.Row(row.name, row.finished) for row in rows if row.finished]
    joint = runs.joint_rows(ended)
    shown = [row for row in ended if row not in joint]
    if not shown:
        shown, joint = ended, []
    several, labels = zip(*((run.results, row.name) for row in shown for run in row.runs))
    return [
        plot_average_so_far(
            {row.name: [run.results for run in row.runs] for row in shown},
            output / f"accuracy-so-far.{form}", chance=runs.chance(rows),
            references={row.name: runs.finals_of(row) for row in joint},
        ),
        plot_accuracy_bars(
            several, labels, output / f"{BY_TASK}.{form}", names=task_names(several),
            references={row.name: row.runs[0].results for row in joint},
        ),
    ]  # fmt: skip


def _labels(folders: Sequence[PathLike], results: Sequence[Mapping[str, Any]]) -> list[str]:
    methods = [str(one.get("method")) for one in results]
    labels = [
        method if methods.count(method) == 1 else f"{method} ({pathlib.Path(folder).resolve().name})"
        for folder, method in zip(folders, methods)
    ]
    # Folders of one name in different places, or one folder twice.
    return [label if labels.count(label) == 1 else f"{label} {number}" for number, label in enumerate(labels, start=1)]


def task_names(results: Sequence[Mapping[str, Any]]) -> Optional[list[str]]:
    """What the tasks are called, where that is the same for all clients and runs; else None."""
    found = {tuple(map(str, names)) for one in results for names in (one.get("config") or {}).get("tasks") or [()]}
    return list(found.pop()) or None if len(found) == 1 else None
