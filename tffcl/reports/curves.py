"""Curves over rounds and tasks (accuracy of each task, NLL, bytes sent), and bars of the accuracy at the end."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from tffcl import metrics
from tffcl.errors import InputError
from tffcl.program.events import Event
from tffcl.reports import figures
from tffcl.reports.tables import NLL_FIGURES, half_width, scores_of, total
from tffcl.storage import PathLike

History = Sequence[Event]
NAN = float("nan")
MOST_MARKERS = 12  # on a line of `plot_accuracy_by_round`
# Keys of the results, and what tells the ways of scoring a density apart.
WAYS = {"nll": "no task label", "nll_task_known": "task known", "nll_newest": "newest parameters"}


def rounds_of(history: History) -> list[Event]:
    """The rounds of all tasks in order; a round's place in this list + 1 is its number on every x axis.

    Raises:
      InputError: there are none, or one does not say which task it learned.
    """
    rounds = [event for event in history if event.get("event") == "round"]
    if not rounds:
        raise InputError("the history holds no round yet; nothing to plot")
    for number, event in enumerate(rounds, start=1):
        if not isinstance(event.get("task"), int):
            raise InputError(f"round {number} of the history: 'task' must be a number, got {event.get('task')!r}")
    return rounds


def task_spans(rounds: Sequence[Event]) -> dict[int, tuple[int, int]]:
    """Task -> numbers (from 1) of the first and last round in which it was learned."""
    numbered = itertools.groupby(enumerate(rounds, start=1), key=lambda pair: pair[1]["task"])
    spans = {}
    for task, group in numbered:
        numbers = [number for number, _ in group]
        spans[task] = (numbers[0], numbers[-1])
    return spans


def clients_of(history: History) -> list[int]:
    """The clients that any round has an accuracy or NLL of, ascending."""
    return sorted({int(key) for event in rounds_of(history) for key in _scores(event)})


def accuracy_curve(rounds: Sequence[Event], client: int, task: int) -> list[float]:
    """Accuracy in %, or NLL in nats, of `client` on `task` after each round; NaN where there is no data."""
    rows = [(100 if "accuracy" in event else 1, _scores(event).get(str(client)) or []) for event in rounds]
    return [scale * row[task] if task < len(row) and row[task] is not None else NAN for scale, row in rows]


def _scores(event: Event) -> Mapping[str, Any]:
    return event.get("accuracy") or event.get("nll") or {}


def _runs(history: Union[History, Mapping[str, History]]) -> dict[str, list[Event]]:
    """The rounds of each run by its name; "" for a single one."""
    histories = history if isinstance(history, Mapping) else {"": history}
    if not histories:
        raise InputError("no history to plot")
    return {name: rounds_of(events) for name, events in histories.items()}


def plot_accuracy_per_round(
    history: Union[History, Mapping[str, History]], path: PathLike, *, client: int | None = None
) -> pathlib.Path:
    """Test accuracy, or NLL, of each task of one client at the end of each round (FedSeIT, fig. 5).

    A panel per task; the shaded rounds are those in which the task was learned (the paper shows only these),
    what follows shows whether it is forgotten.

    Shown in docs/runs.md.

    Args:
      history: of one run, or several by name, to compare them.
      path: its ending says the format.
      client: whose accuracy, 0 .. C-1; None for the last one, as in the paper.

    Raises:
      InputError: no rounds, or no accuracy of that client.
    """
    runs = _runs(history)
    known = clients_of(list(itertools.chain(*runs.values())))
    if not known or (client is not None and client not in known):
        raise InputError(f"no accuracy of client {client} in the history; clients with accuracy: {known}")
    client = known[-1] if client is None else client
    spans = task_spans(max(runs.values(), key=len))
    figure, axes = figures.panels(len(spans), most_columns=5, width=2.3, height=2.2, sharex=True, sharey=True)
    lines: dict[str, Any] = {}
    for axis, (task, (first, last)) in zip(axes, spans.items()):
        axis.axvspan(first - 0.5, last + 0.5, color=figures.SHADE, linewidth=0, zorder=0)
        for place, (name, rounds) in enumerate(runs.items()):
            values = accuracy_curve(rounds, client, task)
            (lines[name],) = axis.plot(range(1, len(rounds) + 1), values, **figures.style(place))
        figures.dress(axis, f"Task {task + 1}", max(map(len, runs.values())))
    is_density = any(event.get("nll") for rounds in runs.values() for event in rounds)
    what, unit = ("NLL", "nats") if is_density else ("accuracy", "%")
    if len(runs) > 1:
        figures.legend(figure, lines)
    title = f"Client {client + 1}: test {what} after each round\n(shaded: the rounds that learn the task)"
    return figures.save(figure, path, title, "Round, all tasks", f"Test {what} ({unit})")


def plot_accuracy_by_round(
    history: Union[History, Mapping[str, History]],
    path: PathLike,
    *,
    names: Optional[Sequence[str]] = None,
    references: Optional[Mapping[str, Mapping[str, Any]]] = None,
) -> pathlib.Path:
    """Test accuracy of each task from the first round that learns it on, mean over the clients that have data.

    Dotted marks stand where a new task begins; a line that falls behind one is a task that is forgotten.

    Shown with `plot_average_so_far`.

    Args:
      history: of one run, or several by name, with a panel each.
      path: its ending says the format.
      names: what the tasks are called; None for their numbers.
      references: results of other runs by name, for example offline ones; their average over the tasks is a
        horizontal line.

    Raises:
      InputError: no rounds, no accuracy in any round of a run, or references without accuracy.
    """
    runs = _runs(history)
    for name, rounds in runs.items():
        if not has_accuracy(rounds):
            raise InputError(f"{name or 'the history'}: no round holds an accuracy; nothing to plot")
    figure, axes = figures.panels(
        len(runs),
        most_columns=2 if len(runs) <= 4 else 3,
        width=3.4 if len(runs) > 1 else 5.6,  # the legend stands beside it
        height=2.5,
        sharey=True,
    )
    lines = {}
    for axis, (title, rounds) in zip(axes, runs.items()):
        lines.update(_draw_tasks(axis, rounds, names))
        for place, (name, results) in enumerate((references or {}).items()):
            average = 100 * metrics.mean_of_known(final_accuracies(results))
            lines[name] = axis.axhline(average, **figures.reference_style(place))
        figures.dress(axis, title, len(rounds))
    figures.legend(figure, lines)
    title = "Test accuracy of each task after each round,\nmean over clients (dotted: a new task begins)"
    return figures.save(figure, path, title, "Round, all tasks", "Test accuracy (%)")


def has_accuracy(history: History) -> bool:
    """Whether any round holds an accuracy; where only the ends of tasks are scored, none does."""
    return any(event.get("event") == "round" and event.get("accuracy") for event in history)


def mean_curve(rounds: Sequence[Event], task: int) -> tuple[list[int], list[float]]:
    """Accuracy of a task in %, mean over the clients that have data, and the rounds (from 1) that it is known for.

    What a task scored before it was first learned is left out.
    """
    first = task_spans(rounds)[task][0]
    curves = np.array([accuracy_curve(rounds, client, task) for client in clients_of(rounds)])
    means = [metrics.mean_of_known(column) for column in curves.T]
    known = [(number, mean) for number, mean in enumerate(means, start=1) if number >= first and mean == mean]
    return [number for number, _ in known], [mean for _, mean in known]


def _draw_tasks(axis: Any, rounds: Sequence[Event], names: Optional[Sequence[str]]) -> dict[str, Any]:
    """The lines of a panel by the names of their tasks."""
    lines = {}
    spans = task_spans(rounds)
    for task in spans:
        numbers, means = mean_curve(rounds, task)
        every = max(1, len(numbers) // MOST_MARKERS)
        label = figures.numbered_name(names, task)
        (lines[label],) = axis.plot(numbers, means, markevery=every, **figures.style(task))
    figures.mark_tasks(axis, (first for first, _ in spans.values()))
    return lines


def average_so_far(results: Mapping[str, Any]) -> np.ndarray:
    """After each task, accuracy in % or NLL in nats on the tasks so far, mean over clients and tasks: float64 [T]."""
    key, tensor = scores_of(results)
    return metrics.SCORES[key].scale * metrics.average_accuracy(tensor)


def draw_mean(axis: Any, place: int, table: np.ndarray) -> Any:
    """Line number `place`: the mean of a table [seeds, tasks] after each task, with its 95 % interval as a band."""
    tasks = [task for task in range(table.shape[1]) if not np.isnan(table[:, task]).all()]
    known = [table[:, task][~np.isnan(table[:, task])] for task in tasks]
    means, places = np.array([each.mean() for each in known]), np.array(tasks) + 1
    look = figures.style(place)
    (line,) = axis.plot(places, means, **look)
    if len(table) > 1:
        half = np.array([_half_width(each) for each in known])
        axis.fill_between(places, means - half, means + half, color=look["color"], alpha=0.18, linewidth=0)
    return line


def plot_average_so_far(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    path: PathLike,
    *,
    chance: Optional[float] = None,
    references: Optional[Mapping[str, Sequence[float]]] = None,
) -> pathlib.Path:
    """Mean score on the tasks so far after each task: a line for each method, its mean over seeds.

    The band is the 95 % interval of that mean, where there are two seeds or more.

    Shown in docs/runs.md.

    Args:
      rows: name of a method -> the results of its runs.
      path: its ending says the format.
      chance: accuracy of a guess in %, a line; None where it is not known.
      references: name -> final scores of the seeds of runs that learned all tasks at once (joint, offline): lines.

    Raises:
      InputError: no results, or accuracies and NLLs in one picture.
    """
    kinds = {scores_of(one)[0] for results in rows.values() for one in results}
    if len(kinds) != 1:
        raise InputError(f"expected runs that are all scored alike, got {', '.join(sorted(kinds)) or 'none'}")
    score = metrics.SCORES[kinds.pop()]
    figure = figures.new_figure(5.6, 3.4)
    axis, lines = figure.subplots(), {}
    for place, (name, several) in enumerate(rows.items()):
        curves = [average_so_far(one) for one in several]
        most = max(map(len, curves))
        table = np.array([[*curve, *[NAN] * (most - len(curve))] for curve in curves])
        lines[name] = draw_mean(axis, place, table)
    for place, (name, finals) in enumerate((references or {}).items()):
        lines[name] = axis.axhline(float(np.mean(finals)), **figures.reference_style(place))
    if chance is not None and score.unit == "%":
        lines["chance"] = axis.axhline(chance, **figures.reference_style(1 + len(references or {})))
    longest = max(len(average_so_far(one)) for several in rows.values() for one in several)
    figures.dress(axis, num_rounds=longest)
    seeds = max(map(len, rows.values())) > 1
    over = "mean over clients and seeds (band: 95 % interval)" if seeds else "mean over clients"
    figures.legend(figure, lines)
    return figures.save(
        figure,
        path,
        f"Test {score.name} on the tasks so far,\n{over}",
        "After learning task",
        f"Test {score.name} ({score.unit})",
    )


def plot_nll_by_task(results: Mapping[str, Any], path: PathLike, *, key: str = "nll") -> pathlib.Path:
    """Average, base-task and new-task NLL after each task: of one run in all ways of scoring, or of several runs.

    Shown with `plot_average_so_far`.

    Args:
      results: what `load_results` gives, or several of them by name, to compare runs.
      path: its ending says the format.
      key: of several runs, the way of scoring.

    Raises:
      InputError: results without NLL.
    """
    if "nll" in results:
        curves = {name: results[way] for way, name in WAYS.items() if results.get(way)}
        run = f"{results.get('method')} on {results.get('dataset')}"
    else:
        curves, run = {name: one.get(key) for name, one in results.items()}, ""
    missing = next((name for name, values in curves.items() if not values), None)
    if missing is not None:
        raise InputError(f"{missing}: its results have no {key!r} to plot")
    if not curves:
        raise InputError("no results with an NLL to plot")
    most, lines = max(len(values[0]) for values in curves.values()), {}
    figure, axes = figures.panels(3, most_columns=3, width=2.9, height=2.6, sharey=True)
    for axis, (title, of) in zip(axes, NLL_FIGURES.items()):
        for place, (name, nll) in enumerate(curves.items()):
            values = of(nll)
            (lines[name],) = axis.plot(np.arange(1, len(values) + 1), values, **figures.style(place))
        figures.dress(axis, title, most)
    if len(curves) > 1:
        figures.legend(figure, lines)
    title = f"NLL after each task, mean over clients\n{run}".rstrip()
    return figures.save(figure, path, title, "After learning task", "NLL (nats)")


def cumulative_megabytes(history: History, key: str) -> list[float]:
    """MB sent by the end of each round, all clients together; a task's end counts with the task's last round.

    An event without the number of dense bytes counts as sent.
    """
    sent, sums = 0.0, []
    for event in history:
        value = event.get(key)
        sent += total(event.get(key.replace("_dense", "")) if value is None else value) / 1e6
        if event.get("event") == "round":
            sums.append(sent)
        elif sums:
            sums[-1] = sent
    return sums


def plot_communication(history: History, path: PathLike) -> pathlib.Path:
    """Megabytes sent up and down by the end of each round: as sent (sparse-coded), and had it been dense.

    Shown with `plot_average_so_far`.

    Raises:
      InputError: no rounds.
    """
    rounds = rounds_of(history)
    figure, axes = figures.panels(2, most_columns=2, width=3.7, height=2.7, sharex=True, sharey=True)
    numbers = range(1, len(rounds) + 1)
    directions = (("bytes_up", "Clients to server"), ("bytes_down", "Server to clients"))
    for axis, (key, title) in zip(axes, directions):
        for place, (suffix, name, line) in enumerate((("_dense", "if sent dense", "--"), ("", "sent", "-"))):
            curve, colour = cumulative_megabytes(history, key + suffix), figures.COLOURS[1 - place]
            drawn: dict[str, Any] = {"marker": "o", "markevery": [-1], "markersize": 4}
            axis.plot(numbers, curve, line, label=name, linewidth=1.8, color=colour, **drawn)
            written: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
            axis.annotate(f"{curve[-1]:,.3g}", (len(rounds), curve[-1]), color=colour, **written)
        figures.mark_tasks(axis, (first for first, _ in task_spans(rounds).values()))
        figures.dress(axis, title, len(rounds))
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    title = "Communication, all clients together\n(dotted: a new task begins)"
    return figures.save(figure, path, title, "Round, all tasks", "Sent so far (MB)")


MOST_NUMBERS = 48  # bars up to which the numbers stand above them
GROUP = 0.8  # width of the bars of a task; from a task to the next it is 1


def plot_accuracy_bars(
    results: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    path: PathLike,
    *,
    names: Optional[Sequence[str]] = None,
    references: Optional[Mapping[str, Mapping[str, Any]]] = None,
) -> pathlib.Path:
    """Test accuracy on each task after the last one, mean over the clients that have data, and the mean over tasks.

    Shown with `plot_average_so_far`.

    Args:
      results: what `load_results` gives, of one run or several.
      labels: what each is called; runs of one name (seeds) share a bar, their mean, with its 95 % interval.
      path: its ending says the format.
      names: what the tasks are called; None for their numbers.
      references: results of other runs by name, for example offline ones, drawn as lines over the bars.

    Raises:
      InputError: no results, other than one label for each, a label that a reference has, or results without accuracy.
    """
    clash = sorted(set(labels) & set(references or {}))
    if not results or len(labels) != len(results) or clash:
        raise InputError(
            f"expected results and a label for each, got {len(results)} and {len(labels)} labels"
            + (f", of which references have {', '.join(clash)} as well" if clash else "")
        )
    finals: dict[str, list[np.ndarray]] = {label: [] for label in labels}
    for label, one in zip(labels, results):
        finals[label].append(100 * final_accuracies(one))
    pooled = {name: [100 * final_accuracies(one)] for name, one in (references or {}).items()}
    num_tasks = max(len(row) for rows in (*finals.values(), *pooled.values()) for row in rows)
    ticks = [_broken(figures.numbered_name(names, task)) for task in range(num_tasks)] + ["Average"]
    group = max(0.35 + 0.17 * len(finals), 0.085 * max(len(line) for tick in ticks for line in tick.split("\n")))
    figure = figures.new_figure(max(4.6, 2 + len(ticks) * group), 3.3)
    axis = figure.subplots()
    drawn = {
        label: _draw_bars(axis, place, len(finals), _with_average(rows, num_tasks))
        for place, (label, rows) in enumerate(finals.items())
    }
    for place, (name, rows) in enumerate(pooled.items()):
        heights, starts = _with_average(rows, num_tasks)[0], np.arange(len(ticks)) - 0.5
        drawn[name] = axis.hlines(heights, starts, starts + 1, zorder=2.5, **figures.reference_style(place))
    axis.set_xticks(range(len(ticks)), ticks)
    axis.set_xlim(-0.55, len(ticks) - 0.45)
    axis.set_ylim(0, 104)  # room for numbers
    axis.set_ylabel("Test accuracy (%)", fontsize=9)
    figures.dress(axis)
    seeds = any(len(rows) > 1 for rows in finals.values())
    over = "mean over clients and seeds (with 95 % intervals)" if seeds else "mean over clients"
    title = f"Test accuracy on each task after the last one,\n{over}"
    if len(drawn) > 1:
        figures.legend(figure, drawn)
    return figures.save(figure, path, title if len(drawn) > 1 else f"{title}: {labels[0]}")


def final_accuracies(results: Mapping[str, Any]) -> np.ndarray:
    """Accuracy on each task after the last one, 0 .. 1, mean over the clients that have data: float64 [T].

    NaN where none has. Where all tasks were pooled: on each of the original ones, `accuracy_by_task` of the results.

    Raises:
      InputError: the results have no accuracy.
    """
    if results.get("accuracy_by_task"):
        return np.array(results["accuracy_by_task"][-1], np.float64)
    if not results.get("accuracy"):
        raise InputError(f"{results.get('method', 'a run')}: its results have no 'accuracy' to plot")
    return metrics.accuracy_by_task(results["accuracy"])[-1]


def _with_average(rows: Sequence[np.ndarray], num_tasks: int) -> np.ndarray:
    """Runs -> [runs, num_tasks + 1], NaN for tasks that a run does not have; last the mean over its tasks."""
    return np.array([[*row, *[np.nan] * (num_tasks - len(row)), metrics.mean_of_known(row)] for row in rows])


def _draw_bars(axis: Any, place: int, num_bars: int, rows: np.ndarray) -> Any:
    heights = np.array([metrics.mean_of_known(column) for column in rows.T])
    spread = [_half_width(column) for column in rows.T] if len(rows) > 1 else None
    width = GROUP / num_bars
    round_of_colours, colour = divmod(place, len(figures.COLOURS))
    look = {"color": figures.COLOURS[colour], "hatch": ("", "//", "..")[round_of_colours % 3], "edgecolor": "white"}
    places = np.arange(len(heights)) - GROUP / 2 + (place + 0.5) * width
    bars = axis.bar(places, heights, 0.92 * width, yerr=spread, error_kw={"linewidth": 0.8}, linewidth=0, **look)
    if num_bars * len(heights) <= MOST_NUMBERS:
        numbers = ["" if np.isnan(height) else f"{height:.0f}" for height in heights]
        for text in axis.bar_label(bars, numbers, fontsize=6, padding=1):
            text.set_zorder(4)  # in front of the lines
    return bars


def _half_width(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return half_width(known) if len(known) > 1 else 0.0


def _broken(tick: str) -> str:
    """A tick's number, and its name below, cut short."""
    number, _, name = tick.partition(": ")
    return f"{number}\n{name if len(name) <= 14 else name[:11] + '...'}".rstrip()
