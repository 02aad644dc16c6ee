"""Curves over rounds: accuracy of each task, and bytes sent."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Union

from tffcl.errors import InputError
from tffcl.reports import figures
from tffcl.reports.run_files import Event, PathLike, total

History = Sequence[Event]
NAN = float("nan")


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


def plot_accuracy_per_round(
    history: Union[History, Mapping[str, History]], path: PathLike, *, client: int | None = None
) -> pathlib.Path:
    """Test accuracy, or NLL, of each task of one client at the end of each round (FedSeIT, fig. 5).

    A panel per task; the shaded rounds are those in which the task was learned (the paper shows only these),
    what follows shows whether it is forgotten.

    Args:
      history: events as `load_history` gives them, or several histories by name, to compare runs.
      path: where to write; the ending says the format.
      client: whose accuracy, 0 .. C-1; None for the last one, as in the paper.

    Returns:
      The path written.

    Raises:
      InputError: no rounds, or no accuracy of that client.
    """
    histories = dict(history) if isinstance(history, Mapping) else {"": history}
    runs = {name: rounds_of(events) for name, events in histories.items()}
    if not runs:
        raise InputError("no history to plot")
    known = clients_of(list(itertools.chain(*runs.values())))
    if not known or (client is not None and client not in known):
        raise InputError(f"no accuracy of client {client} in the history; clients with accuracy: {known}")
    client = known[-1] if client is None else client
    spans = task_spans(max(runs.values(), key=len))
    figure, axes = figures.panels(len(spans), most_columns=5, width=2.3, height=2.2, sharex=True, sharey=True)
    for axis, (task, (first, last)) in zip(axes, spans.items()):
        axis.axvspan(first - 0.5, last + 0.5, color=figures.SHADE, linewidth=0, zorder=0)
        for place, (name, rounds) in enumerate(runs.items()):
            axis.plot(
                range(1, len(rounds) + 1), accuracy_curve(rounds, client, task), label=name, **figures.style(place)
            )
        axis.set_title(f"Task {task + 1}", fontsize=9)
        figures.plain_axis(axis)
        figures.round_axis(axis, max(map(len, runs.values())))
    is_density = any(event.get("nll") for rounds in runs.values() for event in rounds)
    what, unit = ("NLL", "nats") if is_density else ("accuracy", "%")
    figure.suptitle(
        f"Client {client + 1}: test {what} after each round\n(shaded: the rounds that learn the task)", fontsize=10
    )
    figure.supxlabel("Round, all tasks", fontsize=9)
    figure.supylabel(f"Test {what} ({unit})", fontsize=9)
    if len(runs) > 1:
        # At the side: below, it would lie on the label of the x axis.
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=9, frameon=False)
    return figures.save(figure, path)


def cumulative_megabytes(history: History, key: str) -> list[float]:
    """MB sent by the end of each round, all clients together; a task's end counts with the task's last round.

    Args:
      history: events.
      key: "bytes_up" or "bytes_down", or either with "_dense"; an event without that number counts as sent.
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

    Returns:
      The path written.

    Raises:
      InputError: no rounds.
    """
    rounds = rounds_of(history)
    figure, axes = figures.panels(2, most_columns=2, width=3.7, height=2.7, sharex=True, sharey=True)
    numbers = range(1, len(rounds) + 1)
    directions = (("bytes_up", "Clients to server"), ("bytes_down", "Server to clients"))
    for axis, (key, title) in zip(axes, directions):
        for place, (suffix, name, line) in enumerate((("_dense", "if sent dense", "--"), ("", "sent", "-"))):
            curve = cumulative_megabytes(history, key + suffix)
            axis.plot(
                numbers,
                curve,
                line,
                label=name,
                linewidth=1.8,
                color=figures.COLOURS[1 - place],
                marker="o",
                markevery=[-1],
                markersize=4,
            )
            axis.annotate(
                f"{curve[-1]:,.3g}",
                (len(rounds), curve[-1]),
                xytext=(4, 0),
                fontsize=8,
                textcoords="offset points",
                va="center",
                color=figures.COLOURS[1 - place],
            )
        for first, _ in list(task_spans(rounds).values())[1:]:
            axis.axvline(first - 0.5, color="#AAAAAA", linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=9)
        figures.plain_axis(axis)
        figures.round_axis(axis, len(rounds))
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.suptitle("Communication, all clients together\n(dotted: a new task begins)", fontsize=10)
    figure.supxlabel("Round, all tasks", fontsize=9)
    figure.supylabel("Sent so far (MB)", fontsize=9)
    return figures.save(figure, path)
