"""Runs in folders, read as far as they are, and what those of one method come to over their seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from tffcl import metrics, storage
from tffcl.errors import InputError, TffclError
from tffcl.program.events import Event
from tffcl.program.results import results_of
from tffcl.reports.tables import (
    FIGURES,
    NO_DATA,
    TASK_AT_TEST,
    forgetting,
    format_bytes,
    incremental,
    render,
    spread,
    task_at_test,
    total,
)
from tffcl.storage import PathLike


def load_results(run_dir: PathLike) -> dict[str, Any]:
    """The numbers of a finished run, from `results.json` in `run_dir`; null (None) stands for "no data".

    Shown in docs/runs.md.

    Raises:
      InputError: the file is missing (the run has not ended, or there is no run) or is not a JSON object.
    """
    path = pathlib.Path(run_dir) / "results.json"
    if not os.path.lexists(path):
        storage.check_run(run_dir)
        raise InputError(f"{path}: no such file: it is written when a run ends; resume the run to finish it")
    return storage.read_object(path, "the results of a run")


def load_history(run_dir: PathLike) -> list[Event]:
    """The events of a run in order, from `history.jsonl` in `run_dir`.

    A last line that a kill cut short is left out. Where a resumed run did a round again, the newer
    line counts.

    Shown in docs/runs.md.

    Raises:
      InputError: the file is missing, or a line other than the last is not a JSON object.
    """
    path = pathlib.Path(run_dir) / "history.jsonl"
    if not os.path.lexists(path):
        storage.check_run(run_dir)
    # Bytes: a cut may fall inside a character, and text tools also split at other separators.
    lines = storage.read_regular(path, "the history of a run").split(b"\n")
    events: dict[tuple[Any, ...], Event] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = storage.parse_object(line, f"{path}, line {number}")
        except InputError:
            if number == len(lines):  # no line break after it
                break
            raise
        kind = event.get("event")
        again = kind in ("round", "task_end")
        events[(kind, str(event.get("task")), str(event.get("round"))) if again else (number,)] = event
    return list(events.values())


@contextlib.contextmanager
def reading(run_dir: PathLike) -> Iterator[None]:
    """Turns what goes wrong inside, with values that no run writes into its files, into one line.

    Raises:
      InputError: in the place of errors of Python and numpy.
    """
    try:
        yield
    except TffclError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{os.fspath(run_dir)}: its files are not as a run writes them ({error!r})") from error


logger = logging.getLogger(__name__)

MOST_TOLD = 3  # settings in a row's name; the table of settings has all
# Settings in which the seeds of one method differ, and what follows from them.
OF_SEEDS = ("seed", "split_seed", "data_fingerprint", "encoder_checksum", "tasks", "enrollment")


def is_pooled(results: Mapping[str, Any]) -> bool:
    """Whether a run learned as one task what it is scored on as several (offline, joint)."""
    return len((results.get("accuracy_by_task") or [()])[-1]) > (results.get("num_tasks") or 1)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory as far as it is."""

    folder: pathlib.Path
    config: Mapping[str, Any]

    @functools.cached_property
    def finished(self) -> bool:
        """Whether it has results."""
        return os.path.lexists(self.folder / "results.json")

    @functools.cached_property
    def history(self) -> list[Event]:
        """Its events; none before its first round has ended."""
        if not os.path.lexists(self.folder / "history.jsonl"):
            return []
        return load_history(self.folder)

    @functools.cached_property
    def results(self) -> Mapping[str, Any]:
        """Its results; of one that has not ended, what they would be by its history."""
        if self.finished:
            return load_results(self.folder)
        with reading(self.folder):
            scores_are = "nll" if any(event.get("nll") for event in self.history) else "accuracy"
            return results_of(self.history, scores_are, self.config).to_json()

    @property
    def progress(self) -> str:
        """How far it is, for example "3 of 15 rounds"."""
        done = sum(event.get("event") == "round" for event in self.history)
        with reading(self.folder):
            return f"{done} of {int(self.config['num_tasks']) * int(self.config['num_rounds'])} rounds"

    @property
    def seeds(self) -> tuple[Any, Any]:
        """Of training and of the split: what pairs runs of two methods."""
        return self.config.get("seed"), self.config.get("split_seed")

    @property
    def settings(self) -> dict[str, Any]:
        """What sets its method apart: all settings but those of seeds."""
        return {name: value for name, value in self.config.items() if name not in OF_SEEDS}

    @property
    def pooled(self) -> bool:
        """Whether it learned as one task what it is scored on as several (offline, joint)."""
        return is_pooled(self.results)


def find_runs(paths: Iterable[PathLike]) -> list[Run]:
    """The run directories among `paths` and below them, each once, in the order of their names.

    Shown in docs/runs.md.

    Raises:
      InputError: a path that is no folder, or without a run in or below it, or whose configuration cannot be read.
    """
    found: dict[pathlib.Path, Run] = {}
    for path in map(pathlib.Path, paths):
        if os.path.lexists(os.path.join(path, "config.json")) or not os.path.isdir(path):
            storage.check_run(path)
            folders = [path]
        else:
            folders = sorted(each.parent for each in path.rglob("config.json"))
        if not folders:
            raise InputError(
                f"{path}: expected a run directory or a folder of them, found no config.json in or below it"
            )
        for folder in folders:
            config = storage.read_object(folder / "config.json", "the configuration of a run")
            found.setdefault(folder.resolve(), Run(folder, config))
    return list(found.values())


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs that a table shows in one row: those of a method that differ in their seeds alone, or a run by itself."""

    name: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> tuple[Run, ...]:
        """Those that count."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def shown(self) -> tuple[Run, ...]:
        """The finished runs, or as far as they are those that are not, where none is finished."""
        return self.finished or tuple(run for run in self.runs if run.history)


def rows_of(runs: Sequence[Run], group_by: str = "method") -> list[Row]:
    """The rows of a table: a method's seeds together, or ("run") each run by itself.

    A row is called by its method; where several have one name, by what else tells them apart. Of runs with the same
    settings and the same seeds one counts, with a warning.

    Shown with `methods_table`.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = str(run.folder) if group_by == "run" else json.dumps(run.settings, sort_keys=True, default=str)
        groups.setdefault(key, []).append(run)
    names = _names([each[0] for each in groups.values()], by_folder=group_by == "run")
    return [Row(name, tuple(_once(each))) for name, each in zip(names, groups.values())]


def _once(runs: Sequence[Run]) -> list[Run]:
    counted: dict[tuple[Any, Any], Run] = {}
    for run in sorted(runs, key=lambda run: not run.finished):
        if run.seeds in counted:
            logger.warning(
                "%s has the settings and seeds of %s and is not counted beside it",
                run.folder,
                counted[run.seeds].folder,
            )
        counted.setdefault(run.seeds, run)
    return sorted(counted.values(), key=lambda run: tuple(map(str, run.seeds)))


def _names(firsts: Sequence[Run], by_folder: bool) -> list[str]:
    datasets = {run.config.get("dataset") for run in firsts}
    names = [
        f"{run.config.get('method')}" + (f" on {run.config.get('dataset')}" if len(datasets) > 1 else "")
        for run in firsts
    ]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, each in enumerate(names) if each == name]
        several = [firsts[place].settings for place in places]
        differing = differences(several)
        for place, settings in zip(places, several):
            told = [f"{key} {_cell(settings.get(key))}" for key in differing[:MOST_TOLD]]
            apart = firsts[place].folder.name if by_folder else ", ".join(told)
            names[place] = f"{name} ({apart})"
    # Folders of one name in different places.
    return [name if names.count(name) == 1 else f"{name} {place}" for place, name in enumerate(names, start=1)]


def differences(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that are not the same in all."""
    keys = dict.fromkeys(key for settings in several for key in settings)
    return [key for key in keys if any(one.get(key) != several[0].get(key) for one in several)]


def _cell(value: Any) -> str:
    text = NO_DATA if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# -- what is measured ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measure:
    """A column: its title with the unit, the value of a run's results (None for no data), digits after the point."""

    title: str
    value: Callable[[Mapping[str, Any]], Optional[float]]
    digits: int = 1


def _first(*names: str, scale: float = 1.0) -> Callable[[Mapping[str, Any]], Optional[float]]:
    def value(results: Mapping[str, Any]) -> Optional[float]:
        known = next((results[name] for name in names if results.get(name) is not None), None)
        return None if known is None else scale * known

    return value


def _only(scores_are: str, value: Callable[[Mapping[str, Any]], Optional[float]]) -> Any:
    return lambda results: value(results) if results.get(scores_are) is not None else None


def _accuracy(results: Mapping[str, Any]) -> Optional[float]:
    """Over tasks and clients; of a pooled run over the tasks that were pooled."""
    name = "average_accuracy_by_task" if is_pooled(results) else "task_averaged_test_accuracy"
    return _first(name, scale=100)(results)


def _incremental(name: str) -> Callable[[Mapping[str, Any]], Optional[float]]:
    """A figure of one growing head (`tffcl.metrics.incremental_figures`), in %."""
    return lambda results: None if (found := incremental(results, name)) is None else 100 * found


def _forgotten(results: Mapping[str, Any]) -> Optional[float]:
    return None if (found := forgetting(results)) is None else 100 * found


def _sent(name: str) -> Callable[[Mapping[str, Any]], Optional[float]]:
    return lambda results: total(results[name]) / 1e6 if results.get(name) is not None else None


def _seconds(results: Mapping[str, Any]) -> Optional[float]:
    seconds = results.get("seconds")
    return seconds.get("total") if isinstance(seconds, Mapping) else seconds


MEASURES = (
    Measure("accuracy % (higher is better)", _only("accuracy", _accuracy)),
    Measure("NLL nats (lower is better)", _only("nll", _first("average_nll_of_tasks", "average_nll")), 2),
    Measure("NLL nats, task known", _first("average_nll_task_known"), 2),
    Measure(FIGURES["forgetting"], _only("accuracy", _forgotten)),
    Measure("forgotten nats", _only("nll", _first("forgetting")), 2),
    *(Measure(called, _incremental(name)) for name, called in FIGURES.items() if name != "forgetting"),
    Measure("MB up", _sent("bytes_up")),
    Measure("MB down", _sent("bytes_down")),
    Measure("seconds in rounds", _seconds, 0),
)


def joint_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows whose runs all learned pooled: lines to hold the others against."""
    return [row for row in rows if row.shown and all(run.pooled for run in row.shown)]


def finals_of(row: Row) -> list[float]:
    """Accuracy in % at the end of each finished run that has one."""
    return list(values_of(row, MEASURES[0]).values())


def values_of(row: Row, measure: Measure) -> dict[tuple[Any, Any], float]:
    """The value of each finished run by its seeds."""
    found = {}
    for run in row.finished:
        with reading(run.folder):
            value = measure.value(run.results)
        if value is not None:
            found[run.seeds] = float(value)
    return found


def methods_table(rows: Sequence[Row], *, against: Optional[str] = None, form: str = "text") -> str:
    """A row for each method: means over its finished seeds with 95 % intervals.

    Against a named row: the paired difference of the score, seed by seed, and p of the paired t-test.

    Shown in docs/runs.md.

    Raises:
      InputError: no row is called so.
    """
    header = ["", "seeds"]
    columns = [[row.name for row in rows], [str(len(row.finished)) for row in rows]]
    told = [task_at_test(row.runs[0].config) for row in rows]
    if {*told} != {NO_DATA}:
        header.append(TASK_AT_TEST)
        columns.append(told)
    for measure in MEASURES:
        values = [list(values_of(row, measure).values()) for row in rows]
        if any(values):
            header.append(measure.title)
            columns.append([spread(each, measure.digits) for each in values])
    if against is not None:
        other = row_called(against, rows)
        compared = [(NO_DATA, NO_DATA) if row is other else _compared(row, other) for row in rows]
        header += [f"over {other.name}", "p"]
        columns += [list(each) for each in zip(*compared)]
    return render(header, list(zip(*columns)), form=form)


def row_called(name: str, rows: Sequence[Row]) -> Row:
    """The row of that name, or the one whose method is called so.

    Raises:
      InputError: there is none, or several.
    """
    called = [row for row in rows if row.name == name] or [
        row for row in rows if row.runs[0].config.get("method") == name
    ]
    if len(called) == 1:
        return called[0]
    raise InputError(f"--against: no row is called {name!r}; rows: {', '.join(row.name for row in rows)}")


def paired(row: Row, other: Row, measure: Measure) -> list[float]:
    """Differences of a measure, over the seeds that both rows have."""
    own, theirs = values_of(row, measure), values_of(other, measure)
    return [own[seeds] - theirs[seeds] for seeds in own if seeds in theirs]


def p_value(pairs: Sequence[float]) -> Optional[float]:
    """Of the paired t-test (two-sided) that the mean difference is 0; None with fewer than two, or all the same."""
    from scipy import stats

    if len(pairs) < 2 or len(set(pairs)) == 1:
        return None
    return float(stats.ttest_1samp(pairs, 0.0).pvalue)


def _compared(row: Row, other: Row) -> tuple[str, str]:
    for measure in MEASURES[:2]:
        pairs = paired(row, other, measure)
        if pairs:
            p = p_value(pairs)
            shown = NO_DATA if p is None else "<0.001" if p < 1e-3 else f"{p:.3f}"
            return spread(pairs, measure.digits, signed=True), shown
    return NO_DATA, NO_DATA


def unfinished_table(rows: Sequence[Row], *, form: str = "text") -> str:
    """The runs that have not ended, as far as they are; empty where all have."""
    lines = []
    for row in rows:
        for run in row.runs:
            if not run.finished:
                with reading(run.folder):
                    scored = [event for event in run.history if metrics.mean_score(event)]
                    sent = format_bytes(sum(total(event.get("bytes_up")) for event in run.history))
                    score = metrics.shown_score(scored[-1]) if scored else NO_DATA
                    lines.append(
                        [row.name, str(run.config.get("seed", NO_DATA)), str(run.folder), run.progress, score, sent]
                    )
    header = ["not finished", "seed", "directory", "progress", "score so far", "sent up"]
    return render(header, lines, form=form, num_text_columns=5) if lines else ""


def differences_table(rows: Sequence[Row], *, form: str = "text") -> str:
    """The settings in which rows differ; empty where they differ in none."""
    several = [row.runs[0].settings for row in rows]
    keys = [key for key in differences(several) if key != "method"]  # which is what rows are called by
    lines = [[key, *(_cell(settings.get(key)) for settings in several)] for key in keys]
    return (
        render(["setting", *(row.name for row in rows)], lines, form=form, num_text_columns=1 + len(rows))
        if keys
        else ""
    )


def common_table(rows: Sequence[Row], *, form: str = "text") -> str:
    """The settings that all rows share."""
    several = [row.runs[0].settings for row in rows]
    shared = [key for key in several[0] if key not in differences(several)]
    return render(
        ["setting", "value"], [[key, _cell(several[0][key])] for key in shared], form=form, num_text_columns=2
    )


def chance(rows: Sequence[Row]) -> Optional[float]:
    """Accuracy in % of a guess, where all runs have tasks of the same number of labels; else None."""
    known = {run.config.get("labels_per_task") for row in rows for run in row.runs}
    labels = known.pop() if len(known) == 1 else None
    return 100 / labels if isinstance(labels, int) and labels > 0 else None
