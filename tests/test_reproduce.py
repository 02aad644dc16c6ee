"""`tffcl reproduce fedseit`: what it makes of run directories that are there."""

from __future__ import annotations

import json

import pytest

from tffcl.commands import reproduce
from tffcl.errors import InputError, RunError


def finished(cell, root, seed, accuracy, rounds=3):
    folder = cell.folder(root, seed)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"num_rounds": rounds, "num_epochs": 10}))
    results = {"task_averaged_test_accuracy": accuracy, "forgetting": 0.01, "accuracy": [[[accuracy]]]}
    (folder / "results.json").write_text(json.dumps(results))


SCHEDULE = ("--num-rounds", "3", "--num-epochs", "10")


def test_what_is_finished_is_tabled_and_not_run_again(tmp_path, capsys):
    cell = reproduce.Cell("trec6", 1.0, "fedseit")
    finished(cell, tmp_path, 1, 0.80)
    finished(cell, tmp_path, 2, 0.84)
    reproduce.reproduce(["trec6"], ["fedseit"], [1.0], [1, 2], SCHEDULE, str(tmp_path), 1)
    row = capsys.readouterr().out.splitlines()[-1]
    assert row == "| trec6 | 1 | fedseit | 82.0 +- 2.8 | 2 | 1.0 +- 0.0 | 83.6 |"


def test_runs_of_another_schedule_are_refused(tmp_path):
    finished(reproduce.Cell("trec6", 1.0, "fedseit"), tmp_path, 1, 0.80, rounds=10)
    with pytest.raises(RunError, match="--num-rounds 10, not 3"):
        reproduce.reproduce(["trec6"], ["fedseit"], [1.0], [1], SCHEDULE, str(tmp_path), 1)


@pytest.mark.parametrize(("dataset", "variant"), [("trec7", "fedseit"), ("trec6", "fedsit")])
def test_unknown_names(tmp_path, dataset, variant):
    with pytest.raises(InputError, match=r"'(trec7|fedsit)' is none of"):
        reproduce.reproduce([dataset], [variant], [1.0], [1], SCHEDULE, str(tmp_path), 1)


def test_the_papers_figures():
    assert reproduce.Cell("r8", 1.0, "fedweit").printed == 79.1
    assert reproduce.Cell("subj", 0.1, "fedseit+sit5+dls").printed == 84.2
    assert reproduce.Cell("trec6", 1.0, "local").printed is None
