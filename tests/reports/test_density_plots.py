"""Plots of densities: curves after each task, attention, samples; by hand where numbers go in."""

import json

import numpy as np
import pytest

from tffcl import reports
from tffcl.errors import InputError, RunError
from tffcl.reports import figures

NLL = [[[80.0, None], [84.0, 90.0]]]
RESULTS = {
    "method": "confedmade",
    "dataset": "digits",
    "nll": NLL,
    "nll_task_known": NLL,
    "nll_newest": [[[80.0, None], [140.0, 90.0]]],
    "average_nll": 87.0,
    "average_nll_task_known": 86.0,
    "average_nll_newest": 115.0,
    "forgetting": 4.0,
    "forgetting_nll_newest": 60.0,
    "config": {"tasks": [["3", "7"], ["1", "3"]]},
}
# Two clients, two kernels; client 0 attends to client 1's first task with a mean of 0.5.
HISTORY = [
    {"event": "round", "task": 0, "round": 0, "bytes_up": {"0": 10}, "bytes_down": {"0": 10}},
    {"event": "task_end", "task": 0, "selection": {"0": [], "1": []}},
    {
        "event": "task_end",
        "task": 1,
        "selection": {"0": [[1, 0]], "1": []},
        "attention": {"0": [[0.25, 0.75]], "1": []},
    },
    {
        "event": "task_end",
        "task": 2,
        "selection": {"0": [[1, 1], [1, 0]], "1": []},
        "attention": {"0": [[1.0, 2.0], [-1.0, 0.0]], "1": []},
    },
]


def is_png(path):
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and content.endswith(b"IEND\xaeB`\x82")


def test_attention_by_hand():
    entries, tasks, values = figures.attention_of(HISTORY).pop(0)
    assert (entries, tasks) == ([(1, 0), (1, 1)], [1, 2])
    np.testing.assert_equal(values, [[0.5, np.nan], [-0.5, 1.5]])
    assert figures.attention_of(HISTORY[:2]) == {}


def test_all_plots_of_a_run(tmp_path):
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in HISTORY))
    (tmp_path / "results.json").write_text(json.dumps({**RESULTS, "config": {"tasks": [["3", "7", "9"]] * 2}}))
    np.savez(tmp_path / "samples.npz", samples=np.zeros([2, 2, 3, 8, 8], np.uint8))
    names = ["communication", "nll-matrix", "nll-by-task", "attention", "samples"]
    paths = reports.write_plots(tmp_path)
    assert [path.stem for path in paths] == names
    assert all(map(is_png, paths))


def test_several_runs_in_one_picture(tmp_path):
    runs = {f"run {number}": RESULTS for number in range(9)}
    assert is_png(reports.plot_nll_by_task(runs, tmp_path / "nll.png", key="nll_newest"))
    with pytest.raises(InputError, match="other: its results have no 'nll'"):
        reports.plot_nll_by_task({"one": RESULTS, "other": {"accuracy": [[[0.5]]]}}, tmp_path / "no.png")
    with pytest.raises(InputError, match="no results with an NLL"):
        reports.plot_nll_by_task({}, tmp_path / "no.png")


def test_nothing_to_plot(tmp_path):
    with pytest.raises(InputError, match="holds no attention"):
        reports.plot_attention(HISTORY[:2], tmp_path / "a.png")
    with pytest.raises(RunError, match=r"samples\.npz: no such file"):
        reports.load_samples(tmp_path)
    (tmp_path / "samples.npz").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(RunError, match=r"samples\.npz is damaged"):
        reports.load_samples(tmp_path)
    np.savez(tmp_path / "samples.npz", samples=np.zeros([2, 8, 8]))
    with pytest.raises(
        RunError, match=r"expected numbers \[clients, tasks, n, height, width\], found float64\[2, 8, 8\]"
    ):
        reports.load_samples(tmp_path)


def test_the_three_ways_stand_side_by_side():
    header, _, row = reports.results_table([RESULTS], form="markdown").splitlines()
    cells = dict(zip(*([cell.strip() for cell in line.strip("|").split("|")] for line in (header, row))))
    assert (cells["NLL nats"], cells["task known"], cells["newest"]) == ("87.00", "86.00", "115.00")
    assert (cells["forgotten nats"], cells["(newest)"]) == ("4.00", "60.00")
    assert "(known)" not in cells


def test_pooled_tasks_are_scored_one_by_one():
    pooled = {**RESULTS, "average_nll_of_tasks": 83.5}
    assert reports.results_table([pooled]).splitlines()[-1].split()[2:5] == ["83.50"] * 3


def test_nll_after_each_task_as_a_table():
    assert reports.nll_by_task_table(RESULTS).splitlines()[2:] == [
        "after task 1    80.00       80.00        80.00",
        "after task 2    87.00       84.00        90.00",
    ]
    with pytest.raises(InputError, match="no 'nll'"):
        reports.nll_by_task_table({"accuracy": [[[0.5]]]})
