"""The frontier: what is read of runs, leaderboards and attacks, who dominates whom, and what cannot be compared."""

from __future__ import annotations

import json

import pytest
from command_line import wrong

from tffcl.errors import InputError
from tffcl.reports import frontier
from tffcl.reports.frontier import Point, on_frontier, points_of


def run_directory(folder, method, seed=1, dataset="digits", epsilon=None, dp=None, **own):
    folder.mkdir(parents=True)
    config = {"method": method, "dataset": dataset, "seed": seed, "num_tasks": 2, "num_rounds": 1, **own}
    results = {
        "method": method, "accuracy": [[[0.5]]], "forgetting": 0.9, "bytes_up": [[1e6], [2e6]],
        "incremental": {"last_accuracy": 0.5 + seed / 10, "forgetting": 0.25, "memory": {"client_bytes": 4e6}},
        "config": {**config, "dp_epsilon": dp},
        **({} if epsilon is None else {"privacy": {"base_updates": {"epsilon": epsilon}}}),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "results.json").write_text(json.dumps(results))


def means(point):
    return {name: mean for name, (mean, _) in point.values.items()}


def test_runs_are_read_with_their_noise_and_means_over_seeds(tmp_path):
    for seed in (1, 2):
        run_directory(tmp_path / f"a{seed}", "fedavg", seed, epsilon=8.0)
    (point,) = points_of([tmp_path], {})
    found = {"accuracy %": 65.0, "forgotten %": 25.0, "MB up": 3.0, "MB kept": 4.0, "epsilon": 8.0}
    assert means(point) == pytest.approx(found)
    assert point.values["accuracy %"][1] == pytest.approx(12.706 * 5, rel=1e-3)  # t(0.975, 1) s / sqrt(2)


def test_what_was_attacked_is_that_which_a_run_sends_without_noise(tmp_path):
    attacks = tmp_path / "attacks"
    attacks.mkdir()
    measured = [("sampled", 1, 0.1), ("sampled", 6, 0.5), ("stats", 1, 1.0)]
    rows = [{"name": name, "beta": 0.01, "times": times, "top1": top1} for name, times, top1 in measured]
    for seed, shift in ((1, 0.0), (2, 0.2)):
        moved = [{**row, "top1": min(1.0, row["top1"] + shift)} for row in rows]
        (attacks / f"fil-ver-seed{seed}.json").write_text(json.dumps({"settings": {}, "rows": moved}))
    known = frontier.attacks_in(attacks)
    assert known == pytest.approx({("sampled", 0.01): 20.0, ("stats", 0.01): 100.0})
    runs = {"fil-ver": 0.01, "ver-stats": 0.01, "ver": 0.01, "fil-ver+other-beta": 0.1, "fedavg": 0.01}
    for method, beta in runs.items():
        run_directory(tmp_path / "runs" / method, method, beta=beta)
    run_directory(tmp_path / "runs" / "noised", "fil-ver+noised", beta=0.01, dp=3.0)
    found = {point.name: means(point) for point in points_of([tmp_path / "runs"], known)}
    linked = {name: values.get("linked %") for name, values in found.items()}
    assert linked == {**dict.fromkeys(found), "fil-ver": 20.0, "ver-stats": 100.0}
    assert found["fil-ver+noised"]["epsilon"] == 3.0


def test_a_leaderboard_has_its_means_and_intervals(tmp_path):
    row = {"name": "er", "mean": {"A_T %": 60.0, "MB up": 2.0}, "half_width": {"A_T %": 3.0, "MB up": 0.0}}
    path = tmp_path / "leaderboard.json"
    path.write_text(json.dumps({"flags": ["--data", "digits"], "rows": [row]}))
    (point,) = points_of([path], {})
    assert point == Point("er", {"accuracy %": (60.0, 3.0), "MB up": (2.0, 0.0)})
    run_directory(tmp_path / "run", "fedavg")
    assert len(points_of([path, tmp_path / "run"], {})) == 2


@pytest.mark.parametrize(
    ("other", "mark"),
    [
        ({}, False),  # nothing is known of it: worse in everything
        ({"accuracy %": 80.0, "MB up": 5.0}, False),
        ({"accuracy %": 90.0, "MB up": 5.0}, True),  # equal
        ({"accuracy %": 80.0, "MB up": 4.0}, True),
        ({"accuracy %": 80.0, "MB up": 5.0, "epsilon": 1e6}, True),  # any epsilon is less than none at all
        ({"accuracy %": 80.0, "MB up": 5.0, "linked %": 100.0}, False),  # no better than not attacked
        ({"accuracy %": 80.0, "MB up": 5.0, "linked %": 99.0}, True),
    ],
)
def test_a_row_is_dominated_by_one_that_is_nowhere_worse_and_somewhere_better(other, mark):
    points = [
        Point(name, {axis: (value, None) for axis, value in values.items()})
        for name, values in (("one", {"accuracy %": 90.0, "MB up": 5.0}), ("other", other))
    ]
    assert on_frontier(points) == [True, mark]


def test_a_row_that_is_told_the_task_dominates_none_that_is_not(tmp_path):
    values = ({"accuracy %": (90.0, None)}, {"accuracy %": (80.0, None)}, {"accuracy %": (70.0, None)})
    told, other, less = (
        Point(name, each, "unknown" if name == "other" else "known")
        for name, each in zip(("told", "other", "less"), values)
    )
    assert on_frontier([told, other]) == [True, True]
    assert on_frontier([told, other, less]) == [True, True, False]
    assert frontier.frontier_table([told, other]).splitlines()[0].split()[:4] == ["task", "at", "test", "frontier"]
    run_directory(tmp_path / "a", "fedweit", task_at_test="known")
    run_directory(tmp_path / "b", "fedweit+entropy", task_at_test="entropy")
    run_directory(tmp_path / "c", "fedavg")
    board = {"name": "w", "mean": {}, "half_width": {}, "task_at_test": "known"}
    path = tmp_path / "leaderboard.json"
    path.write_text(json.dumps({"flags": ["--data", "digits"], "rows": [board]}))
    known = {point.name: point.task_at_test for point in points_of([path, tmp_path], {})}
    assert known == {"w": "known", "fedweit": "known", "fedweit+entropy": "inferred", "fedavg": "-"}


def test_the_command_prints_a_table_and_draws_one_picture(run, tmp_path):
    run_directory(tmp_path / "a", "fedavg", 1)
    run_directory(tmp_path / "b", "er", 2, epsilon=2.0)
    done = run("frontier", tmp_path / "a", tmp_path / "b", "--format", "markdown", "--picture", tmp_path / "f.svg")
    assert done.returncode == 0, done.stderr
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[:4]]
    assert lines[0] == ["", "frontier", "accuracy %", "forgotten %", "MB up", "MB kept", "epsilon"]
    assert {line[0]: line[1] for line in lines[2:]} == {"fedavg": "", "er": "*"}
    assert "<svg" in (tmp_path / "f.svg").read_text()


def test_what_cannot_be_compared_or_read_is_one_line(run, tmp_path):
    run_directory(tmp_path / "a", "fedavg")
    run_directory(tmp_path / "b", "fedavg", dataset="iris")
    (tmp_path / "other.json").write_text('{"rows": []}')
    (tmp_path / "none").mkdir()
    wrong(run("frontier", tmp_path / "a", tmp_path / "b"), "costs on other data do not compare; there are digits, iris")
    wrong(run("frontier", tmp_path / "a", "--attacks", tmp_path / "none"), "no attacks there")
    wrong(run("frontier", tmp_path / "none"), "no config.json")
    with pytest.raises(InputError):
        points_of([tmp_path / "other.json"], {})
    wrong(run("frontier", tmp_path / "other.json"), "other.json")
    wrong(run("frontier", tmp_path / "a", "--picture", tmp_path / "f.svg"), "there is nothing to draw")
