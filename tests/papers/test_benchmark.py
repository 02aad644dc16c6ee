"""`tffcl benchmark` on run directories that are there, and `tffcl verify` of what it wrote."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import types

import numpy as np
import pytest
from command_line import wrong
from scipy import stats

from tffcl import metrics, streams
from tffcl.errors import InputError, RunError
from tffcl.experiment import record
from tffcl.flags import parse_run
from tffcl.papers import benchmark, tables, verify, workers
from tffcl.papers.suites import SUITES, Entry, Suite

SUITE = Suite("small", "a suite of tests", ("--data", "iris", "--num-rounds", "1"), (), ("--num-epochs", "1"),
              target=0.38, rows={"finetune": Entry("fedavg", (), "McMahan et al., 2017"),
               "prox": Entry("fedprox", ("--proximal", "0.1"), "Li et al., 2020", "0.1 of 0.01, 0.1, 1")})  # fmt: skip
ACCURACY = {"finetune": {1: 0.25, 2: 0.35, 3: 0.33}, "prox": {1: 0.5, 2: 0.45, 3: 0.6}}
INCREMENTAL = ("--scenario", "class-incremental", "--num-tasks", "2", "--labels-per-task", "1")


def stream(rows=(0, 1, 2)):
    parts = {"train": np.array(rows), "validation": np.array([], int), "test": np.array([0])}
    return streams.TaskStream("of tests", ((streams.Task(0, 0, labels=(0, 1), test_labels=(0, 1), **parts),),))


def finished(folder, average, rows=(0, 1, 2)):
    folder.mkdir(parents=True)
    row, _, seed = folder.name.rpartition("-seed")
    entry = SUITE.rows[row]
    flags = [*SUITE.flags_of(row, True), *tables.seeded(seed)]
    config = {**parse_run(flags).config(), "data_fingerprint": "0123"}
    incremental = {
        "last_accuracy": average / 2, "average_incremental_accuracy": average, "forgetting": 0.1, "plasticity": 0.9,
        "worst_client_accuracy": 0.1, "seen_accuracy": [1.5 * average, average / 2],
        "by_round": {"rounds": [1, 2], "accuracy": [average, 0.4], "bytes_up": [1e6, 4e6], "bytes_down": [0, 0]},
        "memory": metrics.memory_figures([2e6, 4e6], [10, 30], 100),
    }  # fmt: skip
    results = {
        "method": entry.method,
        "incremental": incremental,
        "bytes_up": [[3e6], [1e6]],
        "accuracy": [[[average]]],
    }
    event = {"event": "round", "task": 0, "round": 0, "training_seconds": {"cpu": 2.0, "wall": 3.0}}
    card = {
        "format": 1,
        **record.makers(),
        "method": entry.method,
        "network": None,
        "options": {},
        "data": {},
        "tasks": [],
    }
    (folder / "run.json").write_text(json.dumps(card))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "history.jsonl").write_text(json.dumps(event) + "\n")
    record.write_split(folder, stream(rows))


@pytest.fixture
def root(tmp_path):
    for name, seeds in ACCURACY.items():
        for seed, value in seeds.items():
            finished(tmp_path / f"{name}-seed{seed}", value)
    return tmp_path


def made(root, rows=(), seeds=(1, 2, 3)):
    benchmark.benchmark(SUITE, rows, seeds, (), root, 1, True)
    return json.loads((root / "leaderboard.json").read_text())


def test_a_row_that_is_told_the_task_has_no_difference_from_one_that_is_not(root, monkeypatch, capsys):
    """Nor does `verify` ask for one; one that infers the task has it."""
    rows = {
        "fedweit": Entry("fedweit", (*INCREMENTAL, "--task-at-test", "known")),
        "inferring": Entry(
            "local", (*INCREMENTAL, "--labels-per-task", "2", "--num-tasks", "1", "--task-at-test", "entropy")
        ),
    }
    suite = dataclasses.replace(SUITE, rows={**SUITE.rows, **rows})
    monkeypatch.setitem(globals(), "SUITE", suite)
    for name in rows:
        for seed in (1, 2, 3):
            finished(root / f"{name}-seed{seed}", 0.9 + seed / 100)
    board = {row["name"]: row for row in made(root)["rows"]}
    told = {name: row["task_at_test"] for name, row in board.items()}
    assert told == {"finetune": "unknown", "prox": "unknown", "fedweit": "known", "inferring": "inferred"}
    assert board["fedweit"]["difference"] == {}
    assert board["inferring"]["difference"][benchmark.AVERAGE][0] == pytest.approx(92 - 31)
    cells = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| fedweit")).split(" | ")
    assert (cells[1], cells[-2]) == ("known", "-")
    with (root / "leaderboard.csv").open() as file:
        assert {line["method"]: line["task_at_test"] for line in csv.DictReader(file)} == told
    again(monkeypatch, {**ACCURACY, **{name: {seed: 0.9 + seed / 100 for seed in (1, 2, 3)} for name in rows}})
    assert [one.problems for one in verify.Check().of(root)] == [()] * 4


@pytest.mark.parametrize("name", SUITES)
def test_suites_have_flags_that_the_program_takes_and_one_stream_for_all_rows(name):
    suite = SUITES[name]
    assert suite.name == name
    for quick in (False, True):
        table = benchmark.table_of(suite, quick)
        experiments = [parse_run(row.flags) for row in table.rows]
        of_stream = ("data", "num_clients", "num_tasks", "labels_per_task", "scenario", "split_seed")
        for option in of_stream:
            assert len({str(getattr(each, option)) for each in experiments}) == 1, option
        rounds = {each.num_rounds * (1 if each.method.pool == "all" else each.num_tasks) for each in experiments}
        assert len(rounds) == 1
        first, *others = table.rows
        told = {row.name: row.cells[1] for row in table.rows}
        assert first.control == ""
        assert {row.name for row in others if row.control != first.name} == {
            n for n, what in told.items() if what == "known"
        }
        for row, each in zip(table.rows, experiments):
            chosen = each.task_at_test if each.method.by_task else None
            assert told[row.name] == {"known": "known", "entropy": "inferred", None: "unknown"}[chosen]
            assert row.cells == (row.name, told[row.name])
        assert ("fedseit" in told) == ("fedseit-entropy" in told) == (name == "questions")


def test_a_leaderboard_has_means_intervals_and_paired_differences_of_all_seeds(root, capsys):
    board = made(root)
    rows = {row["name"]: row for row in board["rows"]}
    for name, seeds in ACCURACY.items():
        values = 100 * np.array(list(seeds.values()))
        low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
        measure = benchmark.AVERAGE
        assert rows[name]["values"][measure] == {str(seed): 100 * value for seed, value in seeds.items()}
        assert rows[name]["mean"][measure] == pytest.approx(values.mean())
        assert rows[name]["half_width"][measure] == pytest.approx((high - low) / 2)
        assert rows[name]["mean"]["MB up"] == 4.0
        assert rows[name]["mean"][benchmark.CPU] == 2.0
    apart = 100 * np.array([ACCURACY["prox"][seed] - ACCURACY["finetune"][seed] for seed in (1, 2, 3)])
    assert rows["prox"]["difference"][benchmark.AVERAGE][0] == pytest.approx(apart.mean())
    assert rows["finetune"]["difference"] == {}
    assert rows["prox"]["chosen"] == "0.1 of 0.01, 0.1, 1"
    assert f"| prox | unknown | {25.83:.1f} +- " in capsys.readouterr().out
    with (root / "leaderboard.csv").open() as file:
        lines = list(csv.DictReader(file))
    found = [line["value"] for line in lines if (line["method"], line["measure"]) == ("prox", benchmark.AVERAGE)]
    assert list(map(float, found)) == [50.0, 45.0, 60.0]


def test_a_row_tells_what_the_target_took_if_all_its_seeds_get_there(root, capsys):
    """Of prox all are there at once; of finetune in the second round, at 0.4, but for seed 2."""
    path = root / "finetune-seed2" / "results.json"
    results = json.loads(path.read_text())
    results["incremental"]["by_round"]["accuracy"][1] = 0.37
    path.write_text(json.dumps(results))
    rows = {row["name"]: row for row in made(root)["rows"]}
    names = benchmark.ROUNDS_TO, benchmark.MB_TO
    assert [rows["prox"]["mean"][name] for name in names] == [1.0, 1.0]
    assert [rows["finetune"]["values"][name] for name in names] == [{"1": 2.0, "3": 2.0}, {"1": 4.0, "3": 4.0}]
    for what in ("mean", "half_width", "difference"):
        assert not set(names) & (set(rows["finetune"][what]) | set(rows["prox"]["difference"]))
    cells = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| finetune")).split(" | ")
    assert cells[8:10] == ["-", "-"]


def test_memory_counts_what_a_client_remembers_in_bytes_and_as_examples(root):
    row = made(root)["rows"][0]
    assert row["mean"]["MB kept"] == pytest.approx((3e6 + 20 * 100) / 1e6)
    assert row["mean"]["as examples"] == pytest.approx(30_020)


def test_a_row_with_one_finished_seed_is_left_out(root):
    for seed in (2, 3):
        (root / f"prox-seed{seed}" / "results.json").unlink()
    workers_finish = workers.finish
    workers.finish = lambda runs, jobs: ["prox-seed2 ended with exit code 1, see x"]
    try:
        with pytest.raises(RunError, match="1 of 6 runs failed; the first: prox-seed2"):
            made(root)
    finally:
        workers.finish = workers_finish
    assert [row["name"] for row in json.loads((root / "leaderboard.json").read_text())["rows"]] == ["finetune"]


def test_rows_of_one_seed_have_one_stream(root):
    (root / "prox-seed2" / "split.npz").unlink()
    record.write_split(root / "prox-seed2", stream((0, 1, 3)))
    with pytest.raises(RunError, match="prox-seed2: other data or tasks than the other rows have with seed 2"):
        made(root)


def test_data_are_one_for_all_methods_that_have_them_in_one_form(root, monkeypatch):
    path = root / "prox-seed2" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data_fingerprint": "4567"}))
    with pytest.raises(RunError, match="prox-seed2: other data or tasks"):
        made(root)
    kinds = {"fedavg": "image", "fedprox": "vector"}
    monkeypatch.setattr(benchmark, "parse_run", lambda flags: types.SimpleNamespace(kind=kinds[flags[0]]))
    sealed = made(root)["streams"]
    assert {kind: sealed["2"][kind] for kind in ("image", "vector")} == {"image": "0123", "vector": "4567"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("benchmark --seed 1", "--seed: a row has an interval"),
        ("benchmark --seed 1 --seed 1", "--seed: a row has an interval"),
        ("benchmark --row nonsense", "'nonsense' is none of finetune"),
        ("benchmark --suite nonsense", "nonsense"),
        ("verify nowhere", "nowhere"),
        ("verify empty", "config.json"),
        ("verify not-json", "not valid JSON"),
        ("verify other.json", "not a leaderboard of this version"),
    ],
)
def test_wrong_input_is_one_line(run, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "finish", None)
    (tmp_path / "empty").mkdir()
    (tmp_path / "not-json").write_text("no")
    (tmp_path / "other.json").write_text('{"format": 99}')
    wrong(run(*line.split()), message)


# -- verify -------------------------------------------------------------------------------------------------------


def again(monkeypatch, accuracy, rows=(0, 1, 2)):
    """Runs come out with these accuracies."""

    def finish(runs, jobs):
        for one in runs:
            name, _, seed = one.folder.name.rpartition("-seed")
            finished(one.folder, accuracy[name][int(seed)], rows)
        return []

    monkeypatch.setattr(workers, "finish", finish)


def test_a_row_that_comes_out_alike_holds_and_its_largest_difference_is_told(root, monkeypatch, capsys):
    made(root)
    again(monkeypatch, {**ACCURACY, "prox": {1: 0.5, 2: 0.455, 3: 0.6}})
    checked = verify.Check().of(root)
    assert [one.largest for one in checked] == pytest.approx([0.0, 0.5])
    verify.tell(checked)
    assert (
        "finetune: holds, equal to the digit\nprox: holds, scores at most 0.5 points apart" in capsys.readouterr().out
    )
    strict = verify.Check(tolerance=0.4).of(root / "leaderboard.json", ["prox"])
    with pytest.raises(RunError, match="1 of 1 do not hold: prox"):
        verify.tell(strict)
    assert "seed 2, average A_t %: 45 there, 45.5 here" in " ".join(strict[0].problems)


def test_each_seed_says_what_code_it_was_run_with_and_verify_names_that(root, monkeypatch, caplog):
    """Finished runs are used again: the code that writes the leaderboard need not be that of any run."""
    path = root / "prox-seed2" / "run.json"
    card = json.loads(path.read_text())
    path.write_text(json.dumps({**card, "code": "0ther", "packages": {**card["packages"], "numpy": "0.1"}}))
    rows = {row["name"]: row for row in made(root)["rows"]}
    codes = {seed: made_with["code"] for seed, made_with in rows["prox"]["made_with"].items()}
    assert codes == {"1": record.code_checksum(), "2": "0ther", "3": record.code_checksum()}
    again(monkeypatch, ACCURACY)
    with caplog.at_level("INFO"):
        verify.Check().of(root, ["prox"])
    told = [line.message for line in caplog.records if "made with" in line.message]
    packages = record.makers()["packages"]
    assert told == [
        "prox, seed 1, 3: made with the same code and packages",
        f"prox, seed 2: made with code 0ther, here {record.code_checksum()}; numpy 0.1, here {packages['numpy']}",
    ]


def digits_of(text):
    return [place.start() for place in re.finditer(r"\d", text)]


def test_a_row_of_which_any_digit_was_changed_does_not_hold(root, monkeypatch):
    made(root)
    again(monkeypatch, ACCURACY)
    file = root / "leaderboard.json"
    board = json.loads(file.read_text())
    place = [row["name"] for row in board["rows"]].index("prox")
    text = json.dumps(board["rows"][place])
    rng = np.random.default_rng(0)
    for at in rng.choice(digits_of(text), 40, replace=False):
        changed = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
        try:
            row = json.loads(changed)
        except ValueError:  # a number that begins with 0
            continue
        if row == json.loads(text):  # beyond what a float64 keeps
            continue
        file.write_text(json.dumps({**board, "rows": [*board["rows"][:place], row, *board["rows"][place + 1 :]]}))
        (checked,) = verify.Check().of(file, [row["name"]])
        assert checked.problems, changed[max(0, at - 40) : at + 20]


def test_a_row_sealed_anew_with_other_values_does_not_come_out(root, monkeypatch):
    """Who changes a value, the mean and the seal gets past all but the runs."""
    made(root)
    again(monkeypatch, ACCURACY)
    file = root / "leaderboard.json"
    board = json.loads(file.read_text())
    row = board["rows"][0]
    row["values"][benchmark.AVERAGE]["1"] += 2.0
    row.update(benchmark.statistics(row["values"], {}, 3))
    row["seal"] = benchmark.seal(row)
    file.write_text(json.dumps(board))
    checked, _ = verify.Check().of(file)
    assert checked.problems == ("seed 1, average A_t %: 27 there, 25.0 here",)


def test_other_data_are_found(root, monkeypatch):
    made(root)
    again(monkeypatch, ACCURACY, rows=(0, 1, 5))
    (checked,) = verify.Check(seeds=(2,)).of(root, ["prox"])
    assert checked.problems == ("seed 2: other data or tasks",)
    with pytest.raises(InputError, match="row prox has no seed 9; it has 1, 2, 3"):
        verify.Check(seeds=(9,)).of(root, ["prox"])
    with pytest.raises(InputError, match="no row 'other'; there are finetune, prox"):
        verify.Check().of(root, ["other"])


@pytest.mark.slow
def test_a_run_is_computed_again_from_its_own_files(run, tmp_path):
    folder = tmp_path / "run"
    line = f"fedavg --data iris --num-clients 2 --num-tasks 2 --labels-per-task 1 --num-rounds 1 --output-dir {folder}"
    assert run("run", *line.split()).returncode == 0
    shown = run("verify", str(folder))
    assert shown.returncode == 0
    assert "run: holds, equal to the digit" in shown.stdout
    results = json.loads((folder / "results.json").read_text())
    results["accuracy"][1][1][0] -= 0.02
    (folder / "results.json").write_text(json.dumps(results))
    shown = run("verify", str(folder))
    assert shown.returncode == 2
    assert "run: accuracy: up to 2 points apart, most for client 2 on task 1 after task 2" in shown.stdout
