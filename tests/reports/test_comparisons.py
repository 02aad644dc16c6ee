"""Accuracy by round and by task: what is drawn, read back from the figures, against numbers by hand."""

import json

import numpy as np
import pytest

from tffcl import reports
from tffcl.errors import InputError
from tffcl.reports import curves, figures, summary

NAN = float("nan")
# Two clients; the second has no data of the first task, and comes with the second.
HISTORY = [
    {"event": "round", "task": 0, "round": 0, "accuracy": {"0": [0.5], "1": [None]}},
    {"event": "round", "task": 0, "round": 1},
    {"event": "round", "task": 0, "round": 2, "accuracy": {"0": [0.75], "1": [None]}},
    {"event": "task_end", "task": 0, "accuracy": [[0.75], [None]]},
    {"event": "round", "task": 1, "round": 0, "accuracy": {"0": [0.5, 1.0], "1": [None, 0.5]}},
    {"event": "round", "task": 1, "round": 1, "accuracy": {"0": [0.25, 1.0], "1": [None, 0.75]}},
]
RUN = {
    "method": "vanilla",
    "num_tasks": 2,
    "accuracy": [[[0.75, None], [0.25, 1.0]], [[None, None], [None, 0.5]]],
    "config": {"tasks": [["upright", "turned"]] * 2},
}
OFFLINE = {
    "method": "offline",
    "num_tasks": 1,
    "accuracy": [[[0.7]]],
    "accuracy_by_task": [[0.9, 0.6]],
    "config": {"tasks": [["upright", "turned"]]},
}


def is_png(path):
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and content.endswith(b"IEND\xaeB`\x82")


def write_run(folder, results, history=HISTORY):
    folder.mkdir(parents=True)
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in history))
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, in order."""
    found, save = [], figures.save
    monkeypatch.setattr(figures, "save", lambda figure, *rest: found.append(figure) or save(figure, *rest))
    return found


def heights(figure):
    return [[bar.get_height() for bar in bars] for bars in figure.axes[0].containers if hasattr(bars, "patches")]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_mean_over_the_clients_that_have_data():
    rounds = curves.rounds_of(HISTORY)
    assert curves.mean_curve(rounds, 0) == ([1, 3, 4, 5], [50, 75, 50, 25])
    assert curves.mean_curve(rounds, 1) == ([4, 5], [75, 87.5])


def test_what_a_task_scored_before_it_was_learned_is_left_out():
    early = [{**HISTORY[0], "accuracy": {"0": [0.5, 0.1]}}, *HISTORY[1:]]
    assert curves.mean_curve(curves.rounds_of(early), 1)[0] == [4, 5]


def test_by_round_as_drawn(tmp_path, drawn):
    path = reports.plot_accuracy_by_round(
        {"a": HISTORY, "b": HISTORY[:3]},
        tmp_path / "rounds.png",
        names=["upright", "turned"],
        references={"offline": OFFLINE},
    )
    assert is_png(path)
    (figure,) = drawn
    first, second = figure.axes
    assert [first.get_title(), second.get_title()] == ["a", "b"]
    one, mark, other, reference = first.lines  # the mark of a border is drawn after the line of its task
    np.testing.assert_array_equal(one.get_xydata(), [[1, 50], [3, 75], [4, 50], [5, 25]])
    other, mark = (mark, other) if len(mark.get_xdata()) == 2 and mark.get_xdata()[0] == 4 else (other, mark)
    np.testing.assert_array_equal(other.get_xydata(), [[4, 75], [5, 87.5]])
    assert list(mark.get_xdata()) == [3.5, 3.5]
    assert list(reference.get_ydata()) == [75, 75]
    assert len(second.lines) == 2
    assert legend(figure) == ["Task 1: upright", "Task 2: turned", "offline"]


def test_a_single_history(tmp_path):
    assert is_png(reports.plot_accuracy_by_round(HISTORY, tmp_path / "rounds.png"))


def test_bars_by_hand(tmp_path, drawn):
    better = {**RUN, "accuracy": [[[0.9, None], [0.75, 1.0]]]}
    path = reports.plot_accuracy_bars(
        [RUN, better, better, OFFLINE],
        ["one", "two", "one", "pooled"],
        tmp_path / "bars.png",
        names=["upright", "turned"],
        references={"offline": OFFLINE},
    )
    assert is_png(path)
    (figure,) = drawn
    # RUN: 25, (100 + 50) / 2 and their mean; the other seed of "one": 75, 100.
    np.testing.assert_allclose(
        heights(figure), [[50, 87.5, (50 + 87.5) / 2], [75, 100, 87.5], [90, 60, 75]], rtol=1e-12
    )
    assert legend(figure) == ["one", "two", "pooled", "offline"]
    axis = figure.axes[0]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["Task 1\nupright", "Task 2\nturned", "Average"]
    spreads, lines = axis.collections
    # t s / sqrt(n) of 25 and 75: t of one degree of freedom is tan(0.475 pi), s is 50 / sqrt(2).
    half = 25 * np.tan(0.475 * np.pi)
    np.testing.assert_allclose(spreads.get_segments()[0][:, 1], [50 - half, 50 + half])
    assert [segment[0, 1] for segment in lines.get_segments()] == [90, 60, 75]
    assert [text.get_text() for text in axis.texts] == [*("50", "88", "69"), *("75", "100", "88"), *("90", "60", "75")]


def test_bars_without_data_have_no_number(tmp_path, drawn):
    empty = {"accuracy": [[[0.5, None], [None, None]]]}
    reports.plot_accuracy_bars([empty, RUN], ["a", "b"], tmp_path / "bars.png")
    np.testing.assert_equal(heights(drawn[0])[0], [NAN, NAN, NAN])
    assert [text.get_text() for text in drawn[0].axes[0].texts][:3] == ["", "", ""]


def test_runs_with_other_numbers_of_tasks_and_many_methods(tmp_path, drawn):
    short = {"accuracy": [[[0.5]]]}
    runs = [short, *[RUN] * 16]
    reports.plot_accuracy_bars(runs, [f"method {n}" for n in range(17)], tmp_path / "bars.png")
    np.testing.assert_equal(heights(drawn[0])[0], [50, NAN, 50])
    bars = [one for one in drawn[0].axes[0].containers if hasattr(one, "patches")]
    looks = {(one.patches[0].get_facecolor(), one.patches[0].get_hatch()) for one in bars}
    assert len(looks) == 17


def test_runs_side_by_side(tmp_path, drawn):
    folders = [
        write_run(tmp_path / "a", RUN),
        write_run(tmp_path / "b", RUN),
        write_run(tmp_path / "c", {**RUN, "method": "ver"}),
        write_run(tmp_path / "pooled", OFFLINE, HISTORY[:1]),
    ]
    paths = reports.compare_plots(folders, tmp_path / "out")
    assert [path.name for path in paths] == ["accuracy-by-task.png", "accuracy-by-round.png"]
    assert all(path.parent == tmp_path / "out" and is_png(path) for path in paths)
    bars, rounds = drawn
    assert legend(bars) == ["vanilla (a)", "vanilla (b)", "ver", "offline"]
    assert legend(rounds) == ["Task 1: upright", "Task 2: turned", "offline"]
    assert [axis.get_title() for axis in rounds.axes] == ["vanilla (a)", "vanilla (b)", "ver"]


def test_pooled_runs_alone_are_bars_as_well(tmp_path, drawn):
    folder = write_run(tmp_path / "pooled", OFFLINE, [{"event": "round", "task": 0, "round": 0}])
    # Scored at the end only: there is nothing to draw by round.
    assert [path.name for path in reports.compare_plots([folder], tmp_path)] == ["accuracy-by-task.png"]
    assert heights(drawn[0]) == [[90, 60, 75]]


def test_one_folder_twice_is_two_runs(tmp_path, drawn):
    folder = write_run(tmp_path / "a", RUN)
    reports.compare_plots([folder, folder], tmp_path)
    assert legend(drawn[0]) == ["vanilla (a) 1", "vanilla (a) 2"]


def test_plots_of_one_run(tmp_path, drawn):
    folder = write_run(tmp_path / "a", {**RUN, "dataset": "digits"})
    names = {path.name for path in reports.write_plots(folder)}
    assert names >= {"accuracy-by-round.png", "accuracy-by-task.png"}
    assert all(map(is_png, (folder / "plots").iterdir()))


def test_names_only_where_all_agree():
    other = {"config": {"tasks": [["upright", "turned"], ["turned", "upright"]]}}
    assert summary.task_names([RUN, OFFLINE]) == ["upright", "turned"]
    assert summary.task_names([other]) is None
    assert summary.task_names([RUN, {}]) is None
    assert summary.task_names([{}]) is None


def test_what_cannot_be_drawn(tmp_path):
    density = {"method": "made", "nll": [[[80.0]]]}
    with pytest.raises(InputError, match="made: its results have no 'accuracy'"):
        reports.plot_accuracy_bars([density], ["made"], tmp_path / "a.png")
    with pytest.raises(InputError, match="a label for each, got 1 and 0 labels"):
        reports.plot_accuracy_bars([RUN], [], tmp_path / "a.png")
    with pytest.raises(InputError, match="of which references have a as well"):
        reports.plot_accuracy_bars([RUN], ["a"], tmp_path / "a.png", references={"a": OFFLINE})
    with pytest.raises(InputError, match="b: no round holds an accuracy"):
        reports.plot_accuracy_by_round({"a": HISTORY, "b": HISTORY[1:2]}, tmp_path / "a.png")
    with pytest.raises(InputError, match="no history to plot"):
        reports.plot_accuracy_by_round({}, tmp_path / "a.png")
    with pytest.raises(InputError, match="at least one run directory"):
        reports.compare_plots([], tmp_path)
    with pytest.raises(InputError, match="expected a run directory"):
        reports.compare_plots([tmp_path], tmp_path)
    assert not list(tmp_path.iterdir())
