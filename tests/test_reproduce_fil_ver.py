"""`tffcl reproduce fil-ver`: what it makes of run directories that are there, and the leak table."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tffcl.commands import FilVerOptions, fil_ver_tables, report, reproduce_fil_ver
from tffcl.commands.fil_ver_flags import STUDY
from tffcl.errors import InputError, RunError

RUNS = [name for name in fil_ver_tables.NAMES if name != "leak"]


def finished(root, table, name, by_task, seed=1, config=(), **results):
    """A run of a row of a table, finished with these accuracies after its last task."""
    folder = root / table / f"{name}-seed{seed}"
    folder.mkdir(parents=True)
    (row,) = (row for row in fil_ver_tables.table(table).rows if row.name == name)
    options = FilVerOptions.parse([*row.flags, "--num-rounds", "3", "--seed", str(seed)])
    settings = {**options.config(), "enrollment": ["**"], "dp_epsilon": None, "tasks": [["a", "b"]], **dict(config)}
    memory = dict.fromkeys(("client_rows", "client", "client_raw_images", "server_rows", "server"), 0)
    content = {
        "method": settings["method"],
        "num_tasks": len(by_task),
        "accuracy": [[by_task] * len(by_task)],
        "accuracy_by_task": [by_task],
        "average_accuracy_by_task": float(np.mean(by_task)),
        "forgetting": 0.05,
        "bytes_up": [[1e6, 2e6], [5e5, 0]],
        "memory": memory,
        "config": settings,
        **results,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "results.json").write_text(json.dumps(content))
    rounds = [
        {"event": "round", "task": task, "round": 0, "accuracy": {"0": by_task[: task + 1]}}
        for task in range(len(by_task))
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in rounds))
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_all_rows_have_flags_that_the_command_takes(name):
    table = fil_ver_tables.table(name)
    assert len({row.name for row in table.rows}) == len(table.rows)
    for row in table.rows:
        FilVerOptions.parse(row.flags)
        assert len(row.cells) == len(table.left)
    assert set(table.measures) <= set(reproduce_fil_ver.MEASURES)


def test_what_the_tables_hold():
    rows = {name: [row.name for row in fil_ver_tables.table(name).rows] for name in RUNS}
    assert {"vanilla", "ver", "ver-stats", "fil-ver", "ebr", "offline", "offline-ebr", "offline-end-to-end"} <= set(
        rows["rotations"]
    )
    assert rows["permuted"] == list(STUDY)
    assert len(rows["enrollment"]) == 12
    by_name = {row.name: row.plain for row in fil_ver_tables.table("rotations").rows}
    assert (by_name["vanilla"], by_name["offline-ebr"]) == ("31-36", "76")


def test_a_table_of_finished_runs(tmp_path, capsys):
    memory = {"client_rows": 300, "client": 617_000, "client_raw_images": 235_200, "server_rows": 0, "server": 12_400}
    finished(tmp_path, "rotations", "fil-ver", [0.8, 0.6], memory=memory)
    finished(tmp_path, "rotations", "fil-ver", [0.9, 0.6], seed=2, memory=memory)
    pooled = {"num_clients": 1, "num_tasks": 1}
    finished(tmp_path, "rotations", "offline", [0.9, 0.7], 1, pooled, num_tasks=1, forgetting=None)
    finished(tmp_path, "rotations", "offline", [0.9, 0.7], 2, pooled, num_tasks=1, forgetting=None)
    flags = ["--num-rounds", "3"]
    reproduce_fil_ver.reproduce("rotations", ["fil-ver", "offline"], [1, 2], flags, str(tmp_path), 1)
    header, _, first, second, *plots = capsys.readouterr().out.splitlines()
    assert header.startswith("| method | task 1 | task 2 | task 3 | task 4 | average | forgotten | MB up |")
    assert first == (
        "| fil-ver | 85.0 +- 7.1 | 60.0 +- 0.0 | - | - | 72.5 +- 3.5 | 5.0 +- 0.0 | 3.50 +- 0.00 | 617.0 +- 0.0 | "
        "12.4 +- 0.0 | 2 | 57-65 |"
    )
    assert second.startswith("| offline | 90.0 +- 0.0 | 70.0 +- 0.0 | - | - | 80.0 +- 0.0 | - |")
    assert [plot.rsplit("/", 1)[1] for plot in plots] == ["accuracy-by-task.png", "accuracy-by-round.png"]


def test_pictures_of_each_scenario(tmp_path, capsys):
    for scenario in ("full", "scattered"):
        for method in ("vanilla", "ver"):
            finished(tmp_path, "enrollment", f"{scenario}-{method}", [0.5, 0.6])
    rows = ["full-v", "scattered-v"]
    reproduce_fil_ver.reproduce("enrollment", rows, [1], ["--num-rounds", "3"], str(tmp_path), 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:6]] == [
        ["| full", "vanilla"], ["| full", "ver"], ["| scattered", "vanilla"], ["| scattered", "ver"],
    ]  # fmt: skip
    assert sum("plots-full" in line for line in lines) == sum("plots-scattered" in line for line in lines) == 2


def test_report_compares_classifiers(tmp_path, capsys):
    folders = [str(finished(tmp_path, "mild", method, [0.5, 0.6])) for method in ("ver", "fil-ver")]
    report.report(folders, markdown=False, plots=False, compare=str(tmp_path / "both"))
    assert capsys.readouterr().out.count("plot: ") == 2
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"accuracy-by-task.png", "accuracy-by-round.png"}


def test_unknown_rows_flags_and_other_settings_are_refused(tmp_path):
    finished(tmp_path, "mild", "ver", [0.5, 0.6])
    with pytest.raises(InputError, match="'vor' is none of vanilla, ver, "):
        reproduce_fil_ver.reproduce("mild", ["vor"], [1], [], str(tmp_path), 1)
    with pytest.raises(InputError, match="--beta"):
        reproduce_fil_ver.reproduce("mild", ["ver"], [1], ["--beta", "-1"], str(tmp_path), 1)
    with pytest.raises(InputError, match="--learning-rate"):
        reproduce_fil_ver.reproduce("leak", [], [1], ["--learning-rate", "0"], str(tmp_path), 1)
    with pytest.raises(RunError, match="--num-rounds 3, not 50: give another --output-dir"):
        reproduce_fil_ver.reproduce("mild", ["ver"], [1], ["--num-rounds", "50"], str(tmp_path), 1)


# -- leak ----------------------------------------------------------------------------------------------------

SMALL = ("--dataset", "digits", "--hidden", "8", "--filters", "4", "--embedding-size", "8", "--pretraining-epochs", "1",
         "--runtime", "in-process")  # fmt: skip


def test_three_disjoint_sets_of_equal_size():
    from tffcl import datasets
    from tffcl.commands import fil_ver_leak

    domains = datasets.mild(datasets.load_images("digits"))
    stream = fil_ver_leak.three_sets(domains, 42)
    sets = [set(stream.task(client, 0).train.tolist()) for client in range(3)]
    assert len(set.union(*sets)) == sum(map(len, sets)) == 3 * 460
    labels = domains.domains[0].train_labels
    assert all(np.bincount(labels[sorted(rows)]).tolist() == [46] * 10 for rows in sets)


def test_the_leak_of_an_encoder(tmp_path, capsys, monkeypatch):
    from tffcl.commands import fil_ver_leak

    monkeypatch.setattr(fil_ver_leak, "CANDIDATES", 200)
    monkeypatch.setattr(fil_ver_leak, "BETAS", (1e-2,))
    fil_ver_leak.reproduce(["stats", "sampled"], [1], SMALL, tmp_path)
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| s")][1:]
    assert [(row[0].strip(), row[1].strip(), row[2].strip()) for row in rows] == [
        ("stats", "0.01", "1x"), ("sampled", "0.01", "1x"), ("sampled", "0.01", "6x"),
    ]  # fmt: skip
    top1 = [float(row[4]) for row in rows]
    # What has no noise is always linked; six samples tell more than one, and one more than chance.
    assert top1[0] == 100
    assert 100 / 200 < top1[1] < top1[2] <= 100
    # What has been measured is not measured again, and not mixed with other settings.
    monkeypatch.setattr(fil_ver_leak, "measure", None)
    fil_ver_leak.reproduce(["sampled"], [1], SMALL, tmp_path)
    kept = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| sampled")]
    assert [float(line.split("|")[5]) for line in kept] == top1[1:]
    with pytest.raises(RunError, match="other settings"):
        fil_ver_leak.reproduce(["sampled"], [1], (*SMALL, "--pretraining-epochs", "2"), tmp_path)
    with pytest.raises(InputError, match="'samples' is none of raw, ebr"):
        fil_ver_leak.reproduce(["samples"], [1], SMALL, tmp_path)


def test_means_over_seeds():
    from tffcl.commands import fil_ver_leak

    def row(name, beta, top1):
        return {"name": name, "beta": beta, "times": 1, "top1": top1, "top5": 1.0, "mean_rank": 1.0, "r2": 0.5}

    rows = [row("sampled", 1e-4, 0.9), row("raw", None, 1.0), row("sampled", 1e-4, 0.8), row("stats", 1e-3, 1.0)]
    means = fil_ver_leak._means(rows)
    assert [one["name"] for one in means] == ["raw", "stats", "sampled"]
    assert means[2]["top1"] == pytest.approx(0.85)
