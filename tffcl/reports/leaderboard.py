"""A leaderboard as files: JSON, CSV, Markdown, and one HTML page with a table that sorts, curves and what they cost."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tffcl import storage
from tffcl.reports import figures
from tffcl.reports.tables import NO_DATA, escaped, half_width

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
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_sum}'">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap; }}
th {{ border-bottom: 2px solid #888; vertical-align: bottom; padding: 0; }}
th:first-child {{ text-align: left; }}
th button {{ font: inherit; font-weight: 600; border: 0; background: none; padding: .3rem .6rem; cursor: pointer; }}
th button:hover, th button:focus-visible {{ background: #eef3fb; }}
th[aria-sort=descending] button::after {{ content: " \\2193"; }}
th[aria-sort=ascending] button::after {{ content: " \\2191"; }}
.text {{ text-align: left; }}
.half {{ color: #666; }}
.note {{ color: #555; max-width: 60rem; }}
img {{ max-width: 100%; height: auto; }}
figure {{ display: inline-block; margin: .5rem 1rem .5rem 0; vertical-align: top; }}
code {{ overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
<div class="wide">{table}</div>
<p class="note">{note}</p>
<h2>Accuracy over all classes seen, after each task</h2>
{curves}
<h2>What accuracy costs</h2>
{costs}
<h2>How it was made</h2>
<p class="note">Flags of every row: <code>{flags}</code></p>
<div class="wide">{details}</div>
<p class="note">{versions}</p>
<script>{script}</script>
</body>
</html>
"""
_COSTS = ("MB up", "MB kept", "CPU s")


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
    lines.writerow(["suite", "method", "seed", "measure", "value"])
    for row in board["rows"]:
        for measure, values in row["values"].items():
            lines.writerows([board["suite"], row["name"], seed, measure, repr(value)] for seed, value in values.items())
    return text.getvalue()


def page(board: Mapping[str, Any]) -> str:
    """The HTML page; it loads nothing."""
    script_sum = base64.b64encode(hashlib.sha256(_SORT.encode()).digest()).decode()
    seeds = max((len(row["seeds"]) for row in board["rows"]), default=0)
    note = (
        f"Means over {seeds} seeds, +- half a 95 % interval (Student's t); differences from {board['against']} are "
        "paired by seed. A_t is the share of the test examples of all classes seen after task t that are right, "
        "without task label. A head of a column sorts by it."
    )
    versions = [f"tffcl {board['tffcl']} ({board['code']})", f"Python {board['python']}",
                *(f"{name} {version}" for name, version in board["packages"].items())]  # fmt: skip
    words = {
        "title": f"{board['suite']}{', quick' if board['quick'] else ''}: {len(board['rows'])} methods, {seeds} seeds",
        "about": board["about"],
        "note": note,
        "flags": " ".join(board["flags"]),
        "versions": ", ".join(versions),
    }
    return _PAGE.format(
        script=_SORT,
        script_sum=script_sum,
        table=_table(board),
        curves=_picture(_plot_curves, board, "accuracy over all classes seen, by task"),
        costs="".join(_picture(_plot_cost, board, f"accuracy against {cost}", cost) for cost in _COSTS),
        details=_details(board),
        **{name: escaped(text, "html") for name, text in words.items()},
    )


def _table(board: Mapping[str, Any]) -> str:
    measures = [name for name in board["measures"] if any(name in row["mean"] for row in board["rows"])]
    compared = "average A_t %"
    heads = ["method", *measures, f"over {board['against']}"]
    ordered = sorted(board["rows"], key=lambda row: -row["mean"].get(compared, -1.0))
    lines = []
    for row in ordered:
        cells = [_cell(row["mean"].get(name), row["half_width"].get(name), _digits(name)) for name in measures]
        difference = row["difference"].get(compared)
        mean, half = difference or (None, None)
        cells.append(_cell(mean, half, 1, signed=True))
        name = escaped(row["name"], "html")
        lines.append(f'<tr><td class="text" data-value="{name}">{name}</td>{"".join(cells)}</tr>')
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
        cells = [escaped(text, "html") for text in (row["name"], row["paper"], own, row["chosen"], row["seal"][:12])]
        for place in (2, 4):
            cells[place] = f"<code>{cells[place]}</code>"
        marked = "".join(f'<td class="text">{cell}</td>' for cell in cells)
        lines.append(f"<tr>{marked}</tr>")
    titles = ("row", "paper", "method and flags", "chosen", "seal")
    heads = "".join(f'<th class="text" scope="col">{name}</th>' for name in titles)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _picture(draw: Callable[..., None], board: Mapping[str, Any], alt: str, *args: str) -> str:
    with tempfile.TemporaryDirectory(prefix="tffcl-leaderboard-") as folder:
        path = pathlib.Path(folder) / "picture.svg"
        draw(board, path, *args)
        if not path.exists():
            return ""
        data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{escaped(alt, "html")}" src="data:image/svg+xml;base64,{data}"></figure>\n'


def _plot_curves(board: Mapping[str, Any], path: pathlib.Path) -> None:
    """A line for each row, its band the 95 % interval; rows that learned all tasks at once are a dashed line."""
    figure = figures.new_figure(7.2, 4.2)
    axis, lines, longest, at_once = figure.subplots(), {}, 0, 0
    for place, row in enumerate(board["rows"]):
        curves = [curve for curve in row["curves"].values() if curve]
        if not curves:
            continue
        table = 100 * np.array(curves)
        longest = max(longest, table.shape[1])
        if table.shape[1] == 1:
            lines[row["name"]] = axis.axhline(table.mean(), **figures.reference_style(at_once))
            at_once += 1
            continue
        tasks, means = np.arange(table.shape[1]) + 1, table.mean(axis=0)
        look = figures.style(place)
        (lines[row["name"]],) = axis.plot(tasks, means, **look)
        if len(table) > 1:
            half = np.array([half_width(list(column)) for column in table.T])
            axis.fill_between(tasks, means - half, means + half, color=look["color"], alpha=0.15, linewidth=0)
    if not lines:
        return
    figures.dress(axis, num_rounds=longest)
    figures.legend(figure, lines)
    figures.save(figure, path, "", "After learning task", "A_t, all classes seen (%)")


def _plot_cost(board: Mapping[str, Any], path: pathlib.Path, cost: str) -> None:
    """Average A_t of each row, or A_T where it learned at once, over a cost; bars are 95 % intervals."""
    points = []
    for place, row in enumerate(board["rows"]):
        score = next((name for name in ("average A_t %", "A_T %") if name in row["mean"]), None)
        if score is not None and cost in row["mean"]:
            points.append((place, row["name"], row["mean"][cost], row["mean"][score], row["half_width"][score]))
    if not points:
        return
    figure = figures.new_figure(5.6, 3.6)
    axis, lines = figure.subplots(), {}
    for place, name, x, y, half in points:
        look = {**figures.style(place), "linestyle": "none"}
        if place >= len(figures.COLOURS):
            look["markerfacecolor"] = "white"  # as the dashes of a line
        lines[name] = axis.errorbar([x], [y], yerr=[half], capsize=2, **look)
    if max(point[2] for point in points) > 20 * max(1e-9, min(point[2] for point in points)):
        axis.set_xscale("symlog", linthresh=max(1e-3, min((p[2] for p in points if p[2] > 0), default=1.0)))
    figures.dress(axis)
    figures.legend(figure, lines)
    figures.save(figure, path, "", _TITLES[cost], "Average A_t (%)")


_TITLES: Mapping[str, str] = {
    "MB up": "Sent up by all clients (MB)",
    "MB kept": "Kept by a client at the end (MB)",
    "CPU s": "CPU time of training (s)",
}
