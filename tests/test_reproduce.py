"""`tffcl reproduce`: what it makes of run directories that are there."""

from __future__ import annotations

import json
import subprocess

import pytest

from tffcl.commands import ConFedMADEOptions, confedmade_tables, reproduce, reproduce_confedmade, reproduce_fedseit
from tffcl.errors import InputError, RunError


def finished(cell, root, seed, accuracy, rounds=3):
    folder = cell.folder(root, seed)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"num_rounds": rounds, "num_epochs": 10}))
    results = {"task_averaged_test_accuracy": accuracy, "forgetting": 0.01, "accuracy": [[[accuracy]]]}
    (folder / "results.json").write_text(json.dumps(results))


SCHEDULE = ("--num-rounds", "3", "--num-epochs", "10")


def test_what_is_finished_is_tabled_and_not_run_again(tmp_path, capsys):
    cell = reproduce_fedseit.Cell("trec6", 1.0, "fedseit")
    finished(cell, tmp_path, 1, 0.80)
    finished(cell, tmp_path, 2, 0.84)
    reproduce_fedseit.reproduce(["trec6"], ["fedseit"], [1.0], [1, 2], SCHEDULE, str(tmp_path), 1)
    row = capsys.readouterr().out.splitlines()[-1]
    assert row == "| trec6 | 1 | fedseit | 82.0 +- 2.8 | 2 | 1.0 +- 0.0 | 83.6 |"


def test_runs_of_another_schedule_are_refused(tmp_path):
    finished(reproduce_fedseit.Cell("trec6", 1.0, "fedseit"), tmp_path, 1, 0.80, rounds=10)
    with pytest.raises(RunError, match="--num-rounds 10, not 3"):
        reproduce_fedseit.reproduce(["trec6"], ["fedseit"], [1.0], [1], SCHEDULE, str(tmp_path), 1)


@pytest.mark.parametrize(("dataset", "variant"), [("trec7", "fedseit"), ("trec6", "fedsit")])
def test_unknown_names(tmp_path, dataset, variant):
    with pytest.raises(InputError, match=r"'(trec7|fedsit)' is none of"):
        reproduce_fedseit.reproduce([dataset], [variant], [1.0], [1], SCHEDULE, str(tmp_path), 1)


def test_the_papers_figures():
    assert reproduce_fedseit.Cell("r8", 1.0, "fedweit").printed == 79.1
    assert reproduce_fedseit.Cell("subj", 0.1, "fedseit+sit5+dls").printed == 84.2
    assert reproduce_fedseit.Cell("trec6", 1.0, "local").printed is None


# -- ConFedMADE ----------------------------------------------------------------------------------------------


def confedmade_run(root, name, results, config=(), history=()):
    """A run of three rounds of a row of table 3, finished with these results."""
    folder = root / "table3" / f"{name}-seed1"
    folder.mkdir(parents=True)
    (row,) = (row for row in confedmade_tables.table(3).rows if row.name == name)
    settings = ConFedMADEOptions.parse([*row.flags, "--num-rounds", "3", "--seed", "1"]).config()
    (folder / "config.json").write_text(json.dumps({**settings, **dict(config)}))
    (folder / "results.json").write_text(json.dumps({"num_tasks": 2, **results}))
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in history))
    return folder


def test_all_rows_have_flags_that_the_command_takes_and_figures_of_the_paper():
    for number in (1, 2, 3, 4):
        table = confedmade_tables.table(number)
        assert len({row.name for row in table.rows}) == len(table.rows)
        for row in table.rows:
            ConFedMADEOptions.parse(row.flags)
            assert len(row.cells) == len(table.left)
            assert len(row.printed) == len(table.paper)
        assert set(table.measures) <= set(reproduce_confedmade.MEASURES)
    by_name = {row.name: row.printed for row in confedmade_tables.table(3).rows}
    assert by_name["mnist-confedmade"] == ("87.12", "8.32")
    assert by_name["binary-fedweit-made"] == ("69.23", "18.02")
    assert by_name["mnist+letters-offline"] == ("84.98", "-")


def test_table_3_of_finished_runs(tmp_path, capsys):
    nll = [[[80.0, None], [84.0, 90.0]]]
    scores = {"nll": nll, "average_nll": 87.0, "average_nll_task_known": 86.0, "forgetting": 4.0}
    confedmade_run(tmp_path, "mnist-confedmade", scores)
    pooled = {"average_nll": 80.0, "average_nll_of_tasks": 82.0, "num_tasks": 1, "forgetting": None}
    confedmade_run(tmp_path, "mnist-offline", pooled, {"num_clients": 1, "num_tasks": 1})
    rows = ["mnist-confedmade", "mnist-offline"]
    reproduce_confedmade.reproduce(3, rows, [1], ["--num-rounds", "3"], str(tmp_path), 1)
    header, _, first, second, plot = capsys.readouterr().out.splitlines()
    assert header.startswith("| data | method | NLL | task known | newest | forgotten |")
    assert first == "| mnist | offline | 82.00 | 82.00 | 82.00 | - | - | - | 1 | 72.68 | - |"
    assert second == "| mnist | confedmade | 87.00 | 86.00 | - | 4.00 | - | - | 1 | 87.12 | 8.32 |"
    assert plot.endswith("nll-by-task-mnist.png")


def test_tables_2_and_4_measure_what_clients_lost_and_sent(tmp_path):
    rounds = [
        {
            "event": "round",
            "task": 0,
            "round": number,
            "validation_loss": {"0": 90.0 - number, "1": 80.0 - number},
            "sent": {"0": 30, "1": 20 + number},
            "bytes_up_dense": {"0": 400, "1": 400},
        }
        for number in (0, 1)
    ]
    results = {"bytes_up": [[1e6, 2e6], [0, 1e6]], "average_nll": 91.0}
    folder = confedmade_run(tmp_path, "mnist-confedmade", results, history=rounds)
    measured = {name: of(folder) for name, of in reproduce_confedmade.MEASURES.items()}
    assert measured["client, held out"] == 84.0
    assert measured["% of B"] == pytest.approx(100 * (30 + 20 + 30 + 21) / 400)
    assert measured["MB up"] == 4.0
    assert measured["server"] == measured["server, one mask"] == 91.0


def test_what_is_not_finished_is_run_or_resumed(tmp_path, monkeypatch):
    calls = []

    def run(command, **_):
        calls.append(command[4:])  # after: python -m tffcl.cli run
        return subprocess.CompletedProcess(command, 3 if "2" in command else 0)

    monkeypatch.setattr(reproduce.subprocess, "run", run)
    root = tmp_path / "table4"
    (root / "cutoff-1-seed1").mkdir(parents=True)
    (root / "cutoff-1-seed1" / "config.json").write_text("{}")
    # Its results are there, but not what stands in them last.
    confedmade_run(tmp_path, "mnist-offline", {"average_nll": 80.0})
    with pytest.raises(RunError, match=r"1 of 2 runs failed; the first: cutoff-1-seed2 ended with exit code 3"):
        reproduce_confedmade.reproduce(4, ["cutoff-1"], [1, 2], [], str(tmp_path), 1)
    reproduce_confedmade.reproduce(3, ["mnist-offline"], [1], ["--num-rounds", "3"], str(tmp_path), 1)
    assert [("--resume" in call, call[0]) for call in calls] == [
        (True, "confedmade"), (False, "confedmade"), (True, "confedmade"),
    ]  # fmt: skip
    assert calls[0][-7:] == [
        "--gate-cutoff",
        "0.1",
        "--seed",
        "1",
        "--output-dir",
        str(root / "cutoff-1-seed1"),
        "--resume",
    ]


def test_other_settings_rows_and_flags_are_refused(tmp_path):
    confedmade_run(tmp_path, "mnist-confedmade", {})
    arguments = ([1], ["--num-rounds", "50"], str(tmp_path), 1)
    with pytest.raises(RunError, match="--num-rounds 3, not 50: give another --output-dir"):
        reproduce_confedmade.reproduce(3, ["mnist-confedmade"], *arguments)
    with pytest.raises(InputError, match="'mnits' is none of mnist-offline"):
        reproduce_confedmade.reproduce(3, ["mnits"], *arguments)
    with pytest.raises(InputError, match="--sparsity"):
        reproduce_confedmade.reproduce(4, [], [1], ["--sparsity", "-1"], str(tmp_path), 1)
