"""One HTML file of runs: tables, curves, settings, a section for each run and client; it loads nothing else."""

from __future__ import annotations

import base64
import hashlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np

from tffcl import metrics
from tffcl.errors import InputError
from tffcl.reports import curves, figures, runs
from tffcl.reports.runs import Row, Run, reading
from tffcl.reports.tables import accuracy_matrix_table, escaped, privacy_lines, scores_of

MOST_PICTURES = 60  # of single clients; beyond, their tables stand alone

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'{allowed}">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }}
h3 {{ font-size: 1rem; margin-bottom: .3rem; }}
nav a {{ margin-right: 1rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #e4e4e4; }}
th {{ border-bottom: 2px solid #888; vertical-align: bottom; }}
td {{ white-space: nowrap; }}
.text {{ text-align: left; }}
img {{ max-width: 100%; height: auto; }}
figure {{ display: inline-block; margin: .5rem 1rem .5rem 0; vertical-align: top; }}
details {{ margin: .5rem 0; padding-left: .6rem; border-left: 3px solid #ddd; }}
summary {{ cursor: pointer; font-weight: 600; }}
.note {{ color: #555; }}
figcaption {{ font-size: .85rem; }}
@media print {{ details > * {{ display: block; }} nav {{ display: none; }} }}
{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def document(title: str, body: str, style: str = "", script: str = "") -> str:
    """A whole HTML page that loads nothing and runs nothing but its own script.

    Args:
      title: text.
      body: HTML, what stands below the title.
      style: CSS of this page alone.
      script: JavaScript, at the end of the body.
    """
    allowed = ""
    if script:
        sum_of_it = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed, body = f"; script-src 'sha256-{sum_of_it}'", f"{body}\n<script>{script}</script>"
    return _PAGE.format(title=escaped(title, "html"), body=body, style=style, allowed=allowed)


def page(rows: Sequence[Row], *, against: Optional[str] = None) -> str:
    """The page.

    Args:
      rows: of its tables.
      against: the name of the row that the others are compared with.

    Raises:
      InputError: no row is called so, or a file is not as a run writes it.
    """
    with tempfile.TemporaryDirectory(prefix="tffcl-report-") as folder:
        pictures = Pictures(pathlib.Path(folder))
        sections = {
            "Methods": _methods(rows, against),
            "Curves": "".join(_curves(rows, pictures)),
            "Matrices": "".join(_matrices(rows, pictures)),
            "Settings": _settings(rows),
            "Runs": "".join(_run(row, run, pictures) for row in rows for run in row.runs),
        }
    found = {name: text for name, text in sections.items() if text}
    links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in found)
    body = "\n".join(f'<h2 id="{name.lower()}">{name}</h2>\n{text}' for name, text in found.items())
    counted = sum(len(row.runs) for row in rows)
    datasets = sorted({str(run.config.get("dataset")) for row in rows for run in row.runs})
    title = f"{counted} run{'s' * (counted > 1)} on {', '.join(datasets)}"
    return document(title, f"<nav>{links}</nav>\n{body}")


class Pictures:
    """Draws pictures into a page."""

    def __init__(self, folder: pathlib.Path):
        self._path = folder / "picture.svg"
        self.left = MOST_PICTURES

    def __call__(self, draw: Callable[..., Any], *args: Any, alt: str, note: str = "", **options: Any) -> str:
        draw(*args, self._path, **options)
        data = base64.b64encode(self._path.read_bytes()).decode()
        below = f'<figcaption class="note">{escaped(note, "html")}</figcaption>' if note else ""
        return f'<figure><img alt="{escaped(alt, "html")}" src="data:image/svg+xml;base64,{data}">{below}</figure>\n'


def _wide(table: str) -> str:
    return f'<div class="wide">{table}</div>\n' if table else ""


def _methods(rows: Sequence[Row], against: Optional[str]) -> str:
    table = _wide(runs.methods_table(rows, against=against, form="html"))
    note = "Means over the finished seeds, with 95 % intervals (Student's t)."
    if against is not None:
        note += f" Differences from {against} are paired by seed; p of the two-sided paired t-test."
    text = f'{table}<p class="note">{escaped(note, "html")}</p>\n'
    return text + _wide(runs.unfinished_table(rows, form="html"))


def _scored(row: Row) -> dict[str, list[Any]]:
    """By what they are scored with, the results of the runs of a row that have a score."""
    found: dict[str, list[Any]] = {}
    for run in row.shown:
        key, tensor = _scores(run)
        if tensor is not None and not np.isnan(tensor).all():
            found.setdefault(key, []).append(run.results)
    return found


def _scores(run: Run) -> tuple[str, Any]:
    with reading(run.folder):
        try:
            return scores_of(run.results)
        except InputError:
            return "", None


def _curves(rows: Sequence[Row], pictures: Pictures) -> Iterator[str]:
    by_kind: dict[str, dict[str, list[Any]]] = {}
    joint = runs.joint_rows(rows)
    for row in rows:
        for kind, results in ({} if row in joint else _scored(row)).items():
            by_kind.setdefault(kind, {})[row.name] = results
    references = {row.name: finals for row in joint if (finals := runs.finals_of(row))}
    for kind, named in by_kind.items():
        accuracy = kind == "accuracy"
        lines: dict[str, Any] = {"chance": runs.chance(rows), "references": references} if accuracy else {}
        yield pictures(curves.plot_average_so_far, named, alt="score on the tasks so far after each task", **lines)
        if accuracy:
            several, labels = zip(*((one, name) for name, results in named.items() for one in results))
            yield pictures(curves.plot_accuracy_bars, several, labels, alt="accuracy on each task at the end")
    histories = {row.name: row.shown[0].history for row in rows if row.shown and row.name not in references}
    scored = {name: history for name, history in histories.items() if curves.has_accuracy(history)}
    if scored:
        note = "Of the first seed of each." if any(len(row.shown) > 1 for row in rows) else ""
        alt = "accuracy of each task after each round"
        yield pictures(curves.plot_accuracy_by_round, scored, alt=alt, note=note)


def _matrices(rows: Sequence[Row], pictures: Pictures) -> Iterator[str]:
    by_kind: dict[str, dict[str, np.ndarray]] = {}
    for row in rows:
        for kind, results in _scored(row).items():
            tensors = [scores_of(one)[1] for one in results]
            if len({tensor.shape for tensor in tensors}) == 1 and tensors[0].shape[1] > 1:
                # A client of a seed is one of so many: their mean is that over clients and seeds.
                by_kind.setdefault(kind, {})[row.name] = np.concatenate(tensors)
    for kind, named in by_kind.items():
        means = [metrics.accuracy_by_task(tensor) for tensor in named.values()]
        for name, tensor in named.items():
            joined, alt = {"method": name, kind: tensor.tolist()}, f"{name}: scores"
            yield pictures(figures.plot_accuracy_matrix, joined, alt=alt, mean_only=True, beside=means)


def _settings(rows: Sequence[Row]) -> str:
    differing = _wide(runs.differences_table(rows, form="html")) or "<p>All settings but the seeds are the same.</p>\n"
    common = _wide(runs.common_table(rows, form="html"))
    return f"{differing}<details><summary>Settings that all share</summary>{common}</details>\n"


def _run(row: Row, run: Run, pictures: Pictures) -> str:
    with reading(run.folder):
        return "".join(_of_run(row, run, pictures))


def _of_run(row: Row, run: Run, pictures: Pictures) -> Iterator[str]:
    state = "" if run.finished else f", {run.progress}"
    head = escaped(f"{row.name}, seed {run.config.get('seed')} ({run.folder}{state})", "html")
    yield f"<details><summary>{head}</summary>\n"
    for line in privacy_lines(run.results):
        yield f"<p>{escaped(line, 'html')}</p>\n"
    kind, tensor = _scores(run)
    if tensor is None or np.isnan(tensor).all():
        yield '<p class="note">Nothing is scored yet.</p>\n</details>\n'
        return
    yield f"<h3>All clients</h3>{_wide(accuracy_matrix_table(run.results, form='html'))}"
    if run.history and any(event.get("event") == "round" for event in run.history):
        yield pictures(curves.plot_communication, run.history, alt="bytes sent by the end of each round")
    drawn = set(curves.clients_of(run.history)) if run.history else set()
    for client in range(len(tensor)):
        yield f"<details><summary>Client {client + 1}</summary>"
        yield _wide(accuracy_matrix_table(run.results, client=client, form="html"))
        if client in drawn and pictures.left > 0:
            pictures.left -= 1
            yield pictures(
                curves.plot_accuracy_per_round, run.history, client=client, alt=f"client {client + 1} by round"
            )
        left_out = [event for event in run.history if client in (event.get("left_out") or [])]
        if left_out:
            yield f"<p>Left out of {len(left_out)} rounds or ends of tasks; the reasons stand in history.jsonl.</p>"
        yield "</details>\n"
    yield "</details>\n"
