"""`tffcl reproduce`: the rows of each paper's tables, and what is made of run directories that are there."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from command_line import wrong

from tffcl.algorithms.fil_ver import STUDY
from tffcl.errors import InputError, RunError
from tffcl.flags import parse_run
from tffcl.papers import CONFEDMADE_TABLES, FIL_VER_TABLES, confedmade, fedseit, fil_ver, tables, workers

SCHEDULE = ("--num-rounds", "3", "--num-epochs", "10")
TABLES = {
    "fedseit": fedseit.table(),
    "fedseit-mixed": fedseit.mixed(),
    "fedseit-projection": fedseit.projections(),
    **{f"confedmade-{name}": confedmade.table(name) for name in CONFEDMADE_TABLES},
    **{f"fil-ver-{name}": fil_ver.table(name) for name in FIL_VER_TABLES if name != "leak"},
}


def finished(table, name, root, seed=1, flags=SCHEDULE, config=(), history=(), place="", **results):
    """The run directory of a row, finished with these results."""
    (row,) = (row for row in table.rows if row.name == name)
    folder = root / f"{name}{place}-seed{seed}"
    folder.mkdir(parents=True)
    settings = {**parse_run([*row.flags, *flags, "--seed", str(seed)]).config(), **dict(config)}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "results.json").write_text(json.dumps({"method": settings["method"], "config": settings, **results}))
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in history))
    return folder


def printed_rows(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("name", TABLES)
def test_rows_have_flags_that_the_program_takes_and_as_many_cells_as_the_table(name):
    table = TABLES[name]
    assert len({row.name for row in table.rows}) == len(table.rows)
    for row in table.rows:
        parse_run(row.flags)
        assert len(row.cells) == len(table.left)
        assert len(row.printed) in (0, len(table.reference))
    assert table.chosen([]) == list(table.rows)


def test_figures_of_the_papers():
    def printed(name):
        return {row.name: row.printed for row in TABLES[name].rows}

    assert printed("fedseit")["r8-lambda1-fedweit"] == ("79.1",)
    assert printed("fedseit")["subj-lambda0.1-fedseit+sit5+dls"] == ("84.2",)
    assert printed("fedseit")["trec6-lambda1-local"] == ("-",)
    assert printed("confedmade-3")["mnist-confedmade"] == ("87.12", "8.32")
    assert printed("confedmade-3")["binary-fedweit-made"] == ("69.23", "18.02")
    assert printed("confedmade-3")["mnist+letters-offline"] == ("84.98", "-")
    assert printed("fil-ver-rotations")["vanilla"] == ("31-36",)
    assert printed("fil-ver-rotations")["offline-ebr"] == ("76",)
    assert [row.name for row in TABLES["fil-ver-permuted"].rows] == list(STUDY)
    assert len(TABLES["fil-ver-enrollment"].rows) == 12


def test_rows_assign_the_digits_as_the_published_code_does():
    (row,) = TABLES["confedmade-3"].chosen(["mnist-confedmade"])
    experiment = parse_run(row.flags)
    assert (experiment.num_clients, experiment.num_tasks, experiment.overlap) == (3, 5, 1.0)
    assert [[task[0] for task in tasks] for tasks in experiment.assign] == [
        ["0", "3", "6", "9", "2"], ["1", "4", "7", "0", "3"], ["2", "5", "8", "1", "4"],
    ]  # fmt: skip


def test_rows_are_named_whole_or_by_how_they_begin():
    table = TABLES["confedmade-3"]
    assert [row.name for row in table.chosen(["mnist-fedprox"])] == ["mnist-fedprox"]
    assert {row.name for row in table.chosen(["binary-fedp"])} == {"binary-fedprox", "binary-fedprox-ewc"}
    with pytest.raises(InputError, match="'mnits' is none of mnist-offline"):
        table.chosen(["mnits"])


@pytest.mark.parametrize(("data", "variant"), [("trec7", "fedseit"), ("trec6", "fedsit")])
def test_unknown_data_and_variants(data, variant):
    with pytest.raises(InputError, match=r"'(trec7|fedsit)' is none of"):
        fedseit.table([data], [variant])


def test_what_is_finished_is_tabled_with_its_spread_and_not_run_again(tmp_path, capsys):
    table = fedseit.table(["trec6"], ["fedseit"], [1.0])
    for seed, accuracy in ((1, 0.80), (2, 0.84)):
        scores = {"task_averaged_test_accuracy": accuracy, "forgetting": 0.01, "bytes_up": [[1e6, 2e6]]}
        finished(table, "trec6-lambda1-fedseit", tmp_path, seed, **scores)
    tables.reproduce(table, table.rows, [1, 2], SCHEDULE, tmp_path, 1)
    # Student's t with one degree of freedom, 12.706, times 2 points.
    assert (
        printed_rows(capsys)[-1]
        == "| trec6 | 1 | fedseit | 82.0 +- 25.4 | - | 1.0 +- 0.0 | - | 3 +- 0 | - | - | 2 | 83.6 |"
    )


def test_rows_are_paired_with_their_control_seed_by_seed(tmp_path, capsys):
    table = fedseit.table(["trec6"], ["fedseit", "alone+warm"], [1.0])
    own, alone = {1: 0.80, 2: 0.84, 3: 0.82}, {2: 0.83, 3: 0.80, 1: 0.78}
    for variant, values in (("fedseit", own), ("alone+warm", alone)):
        for seed, accuracy in values.items():
            scores = {"task_averaged_test_accuracy": accuracy, "forgetting": 0.01, "bytes_up": [[0]]}
            scores["accuracy"] = [[[0.1, None], [0.2, accuracy / 2]]]  # what is learned later: the second task
            finished(table, f"trec6-lambda1-{variant}", tmp_path, seed, **scores)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: small -->\nan older one\n<!-- end -->\nafter\n")
    tables.reproduce(table, table.rows, [1, 2, 3], SCHEDULE, tmp_path, 1, f"{page}#small")
    shown = capsys.readouterr().out
    differences = np.array([own[seed] - alone[seed] for seed in own]) * 100
    width = 4.302653 * differences.std(ddof=1) / 3**0.5  # t with two degrees of freedom, from a printed table
    learned = f"{differences.mean() / 2:+.1f} +- {width / 2:.1f}"
    assert f"| {differences.mean():+.1f} +- {width:.1f} | {learned} | 3 | 83.6 |" in shown
    assert page.read_text() == f"before\n<!-- table: small -->\n\n{shown}\n<!-- end -->\nafter\n"
    lines = (tmp_path / "values.csv").read_text().splitlines()
    assert lines[0] == "row,run,TTA %,learned %,forgotten %,MB kept,MB up"
    assert [line.split(",")[:2] for line in lines[1:4]] == [["trec6-lambda1-fedseit", f"seed{n}"] for n in (1, 2, 3)]
    assert [float(line.split(",")[2]) for line in lines[4:]] == pytest.approx([78.0, 83.0, 80.0])


def test_every_seed_is_run_with_every_split_and_paired_by_both(tmp_path, capsys):
    table = TABLES["fil-ver-classes"]
    values = {(43, 1): 0.7, (43, 2): 0.8, (47, 1): 0.5, (47, 2): 0.7}
    for (split, seed), value in values.items():
        flags = [*SCHEDULE, "--split-seed", str(split)]
        for name, average in (("fil-ver", value), ("ver-12-epochs", value - split / 1000)):
            more = {"average_accuracy_by_task": average, "flags": flags}
            classified(table, name, tmp_path, [value], seed, place=f"-split{split}", **more)
    rows = table.chosen(["fil-ver", "ver-12-epochs"])
    tables.reproduce(table, rows, [1, 2], SCHEDULE, tmp_path, 1, splits=[43, 47])
    # Four differences, of 4.3, 4.3, 4.7 and 4.7 points: Student's t with three degrees of freedom, 3.182.
    assert " | +4.5 +- 0.4 | 4 |" in printed_rows(capsys)[1]
    runs = [line.split(",")[1] for line in (tmp_path / "values.csv").read_text().splitlines()[1:5]]
    assert runs == [f"split{split}-seed{seed}" for split, seed in values]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("page.md", "expected FILE.md#NAME"),
        ("none.md#small", "none.md is no file"),
        ("page.md#other", "has no <!-- table: other --> with <!-- end --> after it"),
        ("page.md#open", "has no <!-- table: open -->"),
    ],
)
def test_a_page_without_a_place_for_the_table_is_found_before_anything_runs(page, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "<!-- table: small -->\n<!-- end -->\n<!-- table: open -->\n"
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(tables.workers, "finish", lambda *_: pytest.fail("a run began"))
    table = fedseit.table(["trec6"], ["fedseit"], [1.0])
    with pytest.raises(InputError, match=re.escape(message)):
        tables.reproduce(table, table.rows, [1], SCHEDULE, tmp_path / "runs", 1, page)
    assert (tmp_path / "page.md").read_text() == text


def test_densities_in_a_table_and_a_picture(tmp_path, capsys):
    table = TABLES["confedmade-3"]
    nll = [[[80.0, None], [84.0, 90.0]]]
    scores = {"nll": nll, "average_nll": 87.0, "average_nll_task_known": 86.0, "forgetting": 4.0, "num_tasks": 2}
    finished(table, "mnist-confedmade", tmp_path, **scores)
    pooled = {"average_nll": 80.0, "average_nll_of_tasks": 82.0, "num_tasks": 1, "forgetting": None}
    finished(table, "mnist-offline", tmp_path, config={"num_clients": 1, "num_tasks": 1}, **pooled)
    tables.reproduce(table, table.chosen(["mnist-confedmade", "mnist-offline"]), [1], SCHEDULE, tmp_path, 1)
    header, _, first, second, plot = capsys.readouterr().out.splitlines()
    assert header.startswith("| data | method | NLL | task known | newest | forgotten |")
    assert first == "| mnist | offline | 82.00 | 82.00 | 82.00 | - | - | - | - | - | 1 | 72.68 | - |"
    assert second == "| mnist | confedmade | 87.00 | 86.00 | - | 4.00 | - | - | - | - | 1 | 87.12 | 8.32 |"
    assert plot.endswith("nll-by-task-mnist.png")


def test_what_clients_lost_and_sent(tmp_path):
    history = [
        {
            "event": "round", "task": 0, "round": number, "validation_loss": {"0": 90.0 - number, "1": 80.0 - number},
            "sent": {"0": 30, "1": 20 + number}, "bytes_up_dense": {"0": 400, "1": 400},
        }
        for number in (0, 1)
    ]  # fmt: skip
    results = {"bytes_up": [[1e6, 2e6], [0, 1e6]], "average_nll": 91.0}
    folder = finished(TABLES["confedmade-3"], "mnist-confedmade", tmp_path, history=history, **results)
    measures = {**TABLES["confedmade-2"].measures, **TABLES["confedmade-4"].measures}
    measured = {name: of(folder) for name, (of, _) in measures.items()}
    assert measured["client, held out"] == 84.0
    assert measured["% of B"] == pytest.approx(100 * (30 + 20 + 30 + 21) / 400)
    assert measured["MB up"] == 4.0
    assert measured["server"] == measured["server, one mask"] == 91.0


MEMORY = dict.fromkeys(("client_rows", "client", "client_raw_images", "server_rows", "server"), 0)


def classified(table, name, root, by_task, seed=1, **more):
    rounds = [
        {"event": "round", "task": task, "round": 0, "accuracy": {"0": by_task[: task + 1]}}
        for task in range(len(by_task))
    ]
    results = {
        "num_tasks": len(by_task), "accuracy": [[by_task] * len(by_task)], "accuracy_by_task": [by_task],
        "average_accuracy_by_task": float(np.mean(by_task)), "forgetting": 0.05, "bytes_up": [[1e6, 2e6], [5e5, 0]],
        "memory": MEMORY,
    }  # fmt: skip
    config = {"enrollment": ["**"], "dp_epsilon": None, "tasks": [["a", "b"]], **dict(more.pop("config", {}))}
    return finished(table, name, root, seed, history=rounds, config=config, **{**results, **more})


def test_classifiers_in_a_table_and_two_pictures(tmp_path, capsys):
    table = TABLES["fil-ver-rotations"]
    memory = {**MEMORY, "client_rows": 300, "client": 617_000, "client_raw_images": 235_200, "server": 12_400}
    for seed, first in ((1, 0.8), (2, 0.9)):
        classified(table, "fil-ver", tmp_path, [first, 0.6], seed, memory=memory)
        pooled = {"config": {"num_clients": 1, "num_tasks": 1}, "num_tasks": 1, "forgetting": None}
        classified(table, "offline", tmp_path, [0.9, 0.7], seed, **pooled)
    tables.reproduce(table, table.chosen(["fil-ver", "offline"]), [1, 2], SCHEDULE, tmp_path, 1)
    header, _, first, second, *plots = capsys.readouterr().out.splitlines()
    assert header.startswith("| method | average | forgotten | task 1 | task 2 | task 3 | task 4 | MB up |")
    assert first == (
        "| fil-ver | 72.5 +- 31.8 | 5.0 +- 0.0 | 85.0 +- 63.5 | 60.0 +- 0.0 | - | - | 3.50 +- 0.00 | 617.0 +- 0.0 | "
        "12.4 +- 0.0 | 2 | 57-65 |"
    )
    assert second.startswith("| offline | 80.0 +- 0.0 | - | 90.0 +- 0.0 | 70.0 +- 0.0 | - | - |")
    assert [plot.rsplit("/", 1)[1] for plot in plots] == ["accuracy-by-task.png", "accuracy-by-round.png"]


def test_pictures_of_each_enrolment(tmp_path, capsys):
    table = TABLES["fil-ver-enrollment"]
    for scenario in ("full", "scattered"):
        for method in ("vanilla", "ver"):
            classified(table, f"{scenario}-{method}", tmp_path, [0.5, 0.6])
    tables.reproduce(table, table.chosen(["full-v", "scattered-v"]), [1], SCHEDULE, tmp_path, 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:6]] == [
        ["| full", "vanilla"], ["| full", "ver"], ["| scattered", "vanilla"], ["| scattered", "ver"],
    ]  # fmt: skip
    assert sum("plots-full" in line for line in lines) == sum("plots-scattered" in line for line in lines) == 2


def test_epsilon_of_the_privacy_table(tmp_path, capsys):
    table = TABLES["fil-ver-privacy"]
    classified(table, "noise-0.5", tmp_path, [0.5, 0.6], config={"dp_epsilon": 33.0})
    tables.reproduce(table, table.chosen(["noise-0.5"]), [1], SCHEDULE, tmp_path, 1)
    assert printed_rows(capsys)[-1].startswith("| clip 10, noise 0.5 | 33.0 | 55.0 | 5.0 |")


def test_what_is_not_finished_is_run_or_resumed_and_failures_are_told_last(tmp_path, monkeypatch, capsys):
    calls = []

    def run(_, order):
        calls.append(order.command)
        return f"{order.folder.name} ended with exit code 3" if "2" in order.command else None

    monkeypatch.setattr(workers._Worker, "run", run)
    (tmp_path / "cutoff-1-seed1").mkdir()
    (tmp_path / "cutoff-1-seed1" / "config.json").write_text("{}")
    table = TABLES["confedmade-4"]
    with pytest.raises(RunError, match=r"1 of 2 runs failed; the first: cutoff-1-seed2 ended with exit code 3"):
        tables.reproduce(table, table.chosen(["cutoff-1"]), [1, 2], SCHEDULE, tmp_path, 1)
    assert len(printed_rows(capsys)) == 1  # the header
    assert [("--resume" in call, call[0]) for call in calls] == [(True, "confedmade"), (False, "confedmade")]
    last = ["--gate-cutoff", "0.1", *SCHEDULE, "--seed", "1", "--output-dir", str(tmp_path / "cutoff-1-seed1")]
    assert calls[0][-11:] == [*last, "--resume"]


def test_runs_of_other_settings_are_refused(tmp_path):
    table = TABLES["confedmade-3"]
    finished(table, "mnist-confedmade", tmp_path, num_tasks=1)
    for name, value in (("num-rounds", "50"), ("learning-rate", "0.5"), ("hidden", "7")):
        flags = (*SCHEDULE, f"--{name}", value)
        with pytest.raises(RunError, match=rf"--{name} .*, not .*{value}.*: give another --output-dir"):
            tables.reproduce(table, table.chosen(["mnist-confedmade"]), [1], flags, tmp_path, 1)


@pytest.mark.parametrize("flags", ["--sparsity -1", "--no-such-flag", "--clients-per-round 9", "--table 4"])
def test_wrong_flags_are_found_before_anything_runs(run, tmp_path, monkeypatch, flags):
    monkeypatch.setattr(workers, "finish", None)
    args = ("confedmade", "--table", "4", "--output-dir", tmp_path / "runs", "--", *flags.split())
    wrong(run("reproduce", *args), flags.split()[0])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("line", "rows", "passed"),
    [
        ("fedseit --data subj --variant local --seed 3 --num-rounds 2 --embeddings own", ["subj-lambda1-local",
         "subj-lambda0.1-local"], ["--num-rounds", "2", "--embeddings", "own"]),
        ("fedseit --table mixed --variant own --variant sit+start", ["own", "sit+start"], []),
        ("confedmade --table 1 --row 2- --num-clients 2 -- --hidden 5", ["2-synchronised", "2-distinct"],
         ["--num-clients", "2", "--hidden", "5"]),
        ("fil-ver --table mild --row ver --split-seed 43 --split-seed 44 --runtime in-process --num-epochs 4 "
         "--data-dir x", ["ver"], ["--data-dir", "x", "--num-epochs", "4", "--runtime", "in-process"]),
    ],
)  # fmt: skip
def test_flags_of_the_command_reach_the_runs(run, monkeypatch, tmp_path, line, rows, passed):
    given = []
    monkeypatch.setattr(tables, "reproduce", lambda *args: given.append(args))
    done = run("reproduce", *line.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ((_, chosen, seeds, flags, root, jobs, page, splits),) = given
    assert [row.name for row in chosen] == rows
    assert sorted(flags) == sorted(passed)
    assert page is None
    assert (seeds, jobs) == ((3,) if "--seed" in line else (1, 2), 1)
    assert splits == ((43, 44) if "--split-seed" in line else ())
    assert str(root).startswith("runs/reproduce-")


def test_where_nothing_can_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    done = run("reproduce", "fedseit", "--output-dir", tmp_path / "file" / "runs")
    assert done.returncode == 2
    assert "file is a file" in done.stderr.split("\n")[-2]
