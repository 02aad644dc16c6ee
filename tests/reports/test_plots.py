"""Plots: the numbers that go into them by hand, and files that are whole pictures."""

import json
import math
import subprocess
import sys

import pytest

from tffcl import reports
from tffcl.errors import InputError
from tffcl.reports import curves

HISTORY = [
    {
        "event": "round",
        "task": 0,
        "round": 0,
        "accuracy": {"0": [0.5], "1": [0.25]},
        "bytes_up": {"0": 1_000_000, "1": 1_000_000},
        "bytes_up_dense": {"0": 4_000_000, "1": 4_000_000},
        "bytes_down": {"0": 500_000},
        "bytes_down_dense": {"0": 500_000},
    },
    {"event": "round", "task": 0, "round": 1, "accuracy": {"0": [0.75]}, "bytes_up": {"0": 1_000_000, "1": None}},
    {"event": "task_end", "task": 0, "accuracy": [[0.75], [None]], "bytes_up": {"0": 250_000}},
    {
        "event": "round",
        "task": 1,
        "round": 0,
        "accuracy": {"0": [0.5, 1.0], "1": [None, 0.75]},
        "bytes_up": {"0": 1_000_000},
        "bytes_down": {"0": 500_000},
    },
]
RESULTS = {
    "method": "fedseit",
    "dataset": "trec6",
    "accuracy": [[[0.75, None], [0.5, 1.0]], [[None, None], [None, 0.75]]],
}


def is_png(path):
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and content.endswith(b"IEND\xaeB`\x82")


def test_curves_by_hand():
    rounds = curves.rounds_of(HISTORY)
    assert curves.task_spans(rounds) == {0: (1, 2), 1: (3, 3)}
    assert curves.clients_of(HISTORY) == [0, 1]
    assert curves.accuracy_curve(rounds, 0, 0) == [50, 75, 50]
    assert [math.isnan(value) for value in curves.accuracy_curve(rounds, 1, 0)] == [False, True, True]
    assert curves.accuracy_curve(rounds, 1, 1)[2] == 75


def test_bytes_by_hand():
    # The task's end (0.25 MB) counts with round 2; events without a dense number count as they were sent.
    assert curves.cumulative_megabytes(HISTORY, "bytes_up") == pytest.approx([2, 3.25, 4.25])
    assert curves.cumulative_megabytes(HISTORY, "bytes_up_dense") == pytest.approx([8, 9.25, 10.25])
    assert curves.cumulative_megabytes(HISTORY, "bytes_down") == pytest.approx([0.5, 0.5, 1.0])


@pytest.mark.slow
def test_write_plots_of_a_run(tmp_path):
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in HISTORY) + '{"eve')
    running = reports.write_plots(tmp_path)
    assert [path.name for path in running] == [
        "communication.png",
        "accuracy-by-round-client-1.png",
        "accuracy-by-round-client-2.png",
        "accuracy-by-round.png",
    ]
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    paths = reports.write_plots(str(tmp_path))
    assert paths[-1] == tmp_path / "plots" / "accuracy-matrix.png"
    assert sorted(paths) == sorted((tmp_path / "plots").iterdir())
    assert all(map(is_png, paths))


def test_several_runs_in_one_picture(tmp_path):
    path = reports.plot_accuracy_per_round({"a": HISTORY, "b": HISTORY[:2]}, tmp_path / "both.png", client=0)
    assert is_png(path)


@pytest.mark.parametrize(
    "results",
    [
        {"nll": [[[98.8]]]},
        {"accuracy": [[[None]]]},
        {"accuracy": [[[0.5 if i <= t else None for i in range(14)] for t in range(14)]] * 6},
    ],
)
def test_matrices_of_other_shapes(tmp_path, results):
    assert is_png(reports.plot_accuracy_matrix(results, tmp_path / "matrix.png"))


def test_nothing_to_plot(tmp_path):
    with pytest.raises(InputError, match="holds no round yet"):
        reports.plot_communication([], tmp_path / "a.png")
    with pytest.raises(InputError, match=r"no accuracy of client 7 .* clients with accuracy: \[0, 1\]"):
        reports.plot_accuracy_per_round(HISTORY, tmp_path / "a.png", client=7)
    with pytest.raises(InputError, match="'task' must be a number, got None"):
        reports.plot_communication([{"event": "round"}], tmp_path / "a.png")
    with pytest.raises(InputError, match=r"a\.xyz"):
        reports.plot_communication(HISTORY, tmp_path / "a.xyz")
    assert not list(tmp_path.iterdir())


def test_no_global_side_effects(tmp_path):
    code = f"""
import sys
from tffcl import metrics, reports, streams
assert not {{"matplotlib", "tensorflow", "tensorflow_federated"}} & set(sys.modules)
reports.plot_accuracy_matrix({{"accuracy": [[[0.5]]]}}, {str(tmp_path / "a.png")!r})
assert "matplotlib.pyplot" not in sys.modules
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
