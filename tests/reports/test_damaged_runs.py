"""Values that no run writes, in files that are whole JSON: numbers or one line, never a stack trace."""

import copy
import json

import pytest

from tffcl import reports
from tffcl.errors import InputError, RunError
from tffcl.reports.summary import report

RESULTS = {
    "method": "fedseit", "dataset": "trec6", "seed": 1, "num_clients": 2, "num_tasks": 2,
    "accuracy": [[[0.5, None], [0.25, 0.75]]] * 2, "accuracy_by_task": [[0.5, None], [0.25, 0.75]],
    "task_averaged_test_accuracy": 0.5, "forgetting": 0.25, "bytes_up": [[1, 2]] * 2, "bytes_down": [[1, 2]] * 2,
    "seconds": {"total": 3.0}, "privacy": {"base_updates": {"epsilon": 1.0}}, "config": {"tasks": [["a", "b"]] * 2},
}  # fmt: skip
ROUND = {
    "event": "round", "task": 0, "round": 0, "participants": [0, 1], "accuracy": {"0": [0.5], "1": [0.5]},
    "bytes_up": {"0": 1, "1": 2}, "bytes_down": {"0": 1, "1": 2}, "seconds": 1.0,
}  # fmt: skip
OTHERS = [None, [], [[]], 3, -1.5, "x", {}, {"x": None}, True]


@pytest.fixture(name="folder")
def _folder(tmp_path):
    write(tmp_path, RESULTS, [ROUND])
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def write(folder, results, events):
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "history.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def numbers_or_one_line(call):
    try:
        call()
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("key", RESULTS)
def test_results_with_a_value_of_another_kind(folder, key):
    for other in OTHERS:
        write(folder, {**RESULTS, key: other}, [ROUND])
        numbers_or_one_line(lambda: report([str(folder)], form="markdown", plots=False))


@pytest.mark.parametrize("key", ["task", "round", "accuracy", "bytes_up"])
def test_a_history_with_a_value_of_another_kind(folder, key, monkeypatch):
    monkeypatch.setattr("tffcl.reports.figures.save", lambda figure, path, *_: path)
    for other in (None, [[]], "x"):
        write(folder, RESULTS, [ROUND, {**ROUND, "round": 1, key: other}])
        numbers_or_one_line(lambda: reports.write_plots(folder))


def test_what_is_wrong_is_said_of_the_run(folder):
    write(folder, {**copy.deepcopy(RESULTS), "config": [1]}, [ROUND])
    with pytest.raises(InputError, match=f"{folder}: its files are not as a run writes them"):
        reports.write_plots(folder)


def test_where_plots_cannot_be_written_the_tables_are_shown_and_then_one_line(folder, capsys):
    (folder / "plots").write_text("in the way")
    with pytest.raises(RunError, match=r"plots: cannot be a folder of plots: .*plots is a file"):
        report([str(folder)], form="markdown", plots=True)
    assert "| fedseit |" in capsys.readouterr().out
    assert (folder / "plots").read_text() == "in the way"
