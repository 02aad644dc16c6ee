"""A leaderboard as files: JSON, CSV, Markdown, and one HTML page with a table that sorts, curves and what they cost."""

from __future__ import annotations

import csv
import io
import itertools
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tffcl import storage
from tffcl.reports import curves, figures
from tffcl.reports.page import Pictures, document
from tffcl.reports.tables import FIGURES, KNOWN, NO_DATA, TASK_AT_TEST, escaped

FINAL, AVERAGE = FIGURES["last_accuracy"], FIGURES["average_incremental_accuracy"]

# Sorts a table by the column whose head is clicked; numbers by what stands in data-value, without one last.
_SORT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[column].dataset.value;
    const rows = [...table.tBodies[0].rows].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  }));
}
"""
_STYLE = """th { padding: 0; }
th:first-child { text-align: left; }
th button { font: inherit; font-weight: 600; border: 0; background: none; padding: .3rem .6rem; cursor: pointer; }
th button:hover, th button:focus-visible { background: #eef3fb; }
th[aria-sort=descending] button::after { content: " \\2193"; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
.half { color: #666; }
code { overflow-wrap: anywhere; }
"""
_BODY = """<p>{about}</p>
<div class="wide">{table}</div>
<p class="note">{note}</p>
<h2>Accuracy over all classes seen, after each task</h2>
{curves}
<h2>What accuracy costs</h2>
{costs}
<h2>How it was made</h2>
<p class="note">Flags of every row: <code>{flags}</code></p>
<div class="wide">{details}</div>
<p class="note">{versions}</p>"""
_COSTS = {
    "MB up": "Sent up by all clients (MB)",
    "MB kept": "Kept by a client at the end (MB)",
    "CPU s": "CPU time of training (s)",
}


def write(board: Mapping[str, Any], root: pathlib.Path, table: str) -> list[pathlib.Path]:
    """Writes leaderboard.json, .csv, .md and .html; returns their paths.

    Args:
      board: what leaderboard.json holds.
      root: the folder.
      table: in Markdown.
    """
    paths = [root / f"leaderboard.{ending}" for ending in ("json", "csv", "md", "html")]
    storage.write_json(paths[0], board)
    heading = f"# {board['suite']}{' (quick)' if board['quick'] else ''}\n\n{board['about']}\n\n"
    for path, text in zip(paths[1:], (_csv(board), f"{heading}{table}\n", page(board))):
        storage.write_whole(path, text.encode())
    return paths


def _csv(board: Mapping[str, Any]) -> str:
    """Every value, tidy."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["suite", "method", "seed", "measure", "value", "task_at_test"])
    for row in board["rows"]:
        left, told = [board["suite"], row["name"]], row["task_at_test"]
        for measure, values in row["values"].items():
            lines.writerows([*left, seed, measure, repr(value), told] for seed, value in values.items())
    return text.getvalue()


def page(board: Mapping[str, Any]) -> str:
    """The HTML page; it loads nothing."""
    seeds = max((len(row["seeds"]) for row in board["rows"]), default=0)
    note = (
        f"Means over {seeds} seeds, +- half a 95 % interval (Student's t); differences from {board['against']} are "
        "paired by seed. A_t is the share of the test examples of all classes seen after task t that are right, "
        f"without task label unless the column {TASK_AT_TEST} says known: such a row has no difference and stands "
        "last; inferred takes, of the tasks that a client has learned, the one whose softmax has the lowest entropy. "
        f"The target is {100 * board['target']:g} % of the test examples of all classes of the suite, looked at after "
        "each task; a row has a mean where all its seeds get there. MB kept is the state of a client and the raw "
        "examples that it remembers, and as examples how many raw examples take as much. A head of a "
        "column sorts by it."
    )
    versions = [f"tffcl {board['tffcl']} ({board['code']})", f"Python {board['python']}",
                *(f"{name} {version}" for name, version in board["packages"].items())]  # fmt: skip
    words = {"about": board["about"], "note": note, "flags": " ".join(board["flags"]), "versions": ", ".join(versions)}
    with tempfile.TemporaryDirectory(prefix="tffcl-leaderboard-") as folder:
        pictures = Pictures(pathlib.Path(folder))
        lines, costs = _curves(board, pictures), "".join(_cost(board, cost, pictures) for cost in _COSTS)
    body = _BODY.format(
        table=_table(board),
        curves=lines,
        costs=costs,
        details=_details(board),
        **{name: escaped(text, "html") for name, text in words.items()},
    )
    title = f"{board['suite']}{', quick' if board['quick'] else ''}: {len(board['rows'])} methods, {seeds} seeds"
    return document(title, body, _STYLE, _SORT)


def _table(board: Mapping[str, Any]) -> str:
    measures = [name for name in board["measures"] if any(name in row["mean"] for row in board["rows"])]
    compared = AVERAGE
    heads = ["method", TASK_AT_TEST, *measures, f"over {board['against']}"]
    ordered = sorted(board["rows"], key=lambda row: (row["task_at_test"] == KNOWN, -row["mean"].get(compared, -1.0)))
    lines = []
    for row in ordered:
        cells = [_cell(row["mean"].get(name), row["half_width"].get(name), _digits(name)) for name in measures]
        difference = row["difference"].get(compared)
        mean, half = difference or (None, None)
        cells.append(_cell(mean, half, 1, signed=True))
        left = [escaped(row[name], "html") for name in ("name", "task_at_test")]
        named = "".join(f'<td class="text" data-value="{text}">{text}</td>' for text in left)
        lines.append(f"<tr>{named}{''.join(cells)}</tr>")
    head = "".join(f'<th scope="col"><button type="button">{escaped(name, "html")}</button></th>' for name in heads)
    return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _digits(measure: str) -> int:
    return 2 if measure.startswith("MB") else 1


def _cell(mean: Any, half: Any, digits: int, signed: bool = False) -> str:
    if mean is None:
        return f'<td data-value="">{NO_DATA}</td>'
    shown = f"{mean:{'+' if signed else ''}.{digits}f}"
    return f'<td data-value="{mean!r}">{shown} <span class="half">&plusmn; {half:.{digits}f}</span></td>'


def _details(board: Mapping[str, Any]) -> str:
    lines = []
    for row in board["rows"]:
        own = " ".join([row["method"], *row["own_flags"]])
        codes = ", ".join(dict.fromkeys(str(made["code"]) for made in row["made_with"].values()))
        texts = (row["name"], row["paper"], own, row["chosen"], codes, row["seal"][:12])
        cells = [escaped(text, "html") for text in texts]
        for place in (2, 4, 5):
            cells[place] = f"<code>{cells[place]}</code>"
        marked = "".join(f'<td class="text">{cell}</td>' for cell in cells)
        lines.append(f"<tr>{marked}</tr>")
    titles = ("row", "paper", "method and flags", "chosen", "code", "seal")
    heads = "".join(f'<th class="text" scope="col">{name}</th>' for name in titles)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _curves(board: Mapping[str, Any], pictures: Pictures) -> str:
    """A picture of A_t; none where no row has any."""
    tables = {row["name"]: [curve for curve in row["curves"].values() if curve] for row in board["rows"]}
    named = {name: 100 * np.array(each) for name, each in tables.items() if each}
    return pictures(_plot_curves, named, alt="accuracy over all classes seen, by task") if named else ""


def _plot_curves(named: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
    """A line for each row [seeds, tasks]; one that learned all tasks at once, [seeds, 1], is a dashed line."""
    figure = figures.new_figure(7.2, 4.2)
    axis, lines, at_once = figure.subplots(), {}, itertools.count()
    for place, (name, table) in enumerate(named.items()):
        if table.shape[1] == 1:
            lines[name] = axis.axhline(table.mean(), **figures.reference_style(next(at_once)))
        else:
            lines[name] = curves.draw_mean(axis, place, table)
    figures.dress(axis, num_rounds=max(table.shape[1] for table in named.values()))
    figures.legend(figure, lines)
    figures.save(figure, path, "", "After learning task", "A_t, all classes seen (%)")


def _cost(board: Mapping[str, Any], cost: str, pictures: Pictures) -> str:
    """A picture of what accuracy costs; none where no row tells of both."""
    points = []
    for place, row in enumerate(board["rows"]):
        score = next((name for name in (AVERAGE, FINAL) if name in row["mean"]), None)
        if score is not None and cost in row["mean"]:
            points.append((place, row["name"], row["mean"][cost], row["mean"][score], row["half_width"][score]))
    return pictures(_plot_cost, points, cost, alt=f"accuracy against {cost}") if points else ""


def _plot_cost(points: Sequence[tuple[int, str, float, float, float]], cost: str, path: pathlib.Path) -> None:
    """Average A_t of each row, or A_T where it learned at once, over a cost; bars are 95 % intervals."""
    figure = figures.new_figure(5.6, 3.6)
    axis, lines = figure.subplots(), {}
    for place, name, x, y, half in points:
        look = {**figures.style(place), "linestyle": "none"}
        if place >= len(figures.COLOURS):
            look["markerfacecolor"] = "white"  # as the dashes of a line
        lines[name] = axis.errorbar([x], [y], yerr=[half], capsize=2, **look)
    figures.spread_out(axis, (point[2] for point in points))
    figures.dress(axis)
    figures.legend(figure, lines)
    figures.save(figure, path, "", _COSTS[cost], "Average A_t (%)")
