"""Runs in folders: read whole or damaged, found, grouped by method, averaged over seeds, compared in pairs, shown."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree

import numpy as np
import pytest
from command_line import wrong

from tffcl import reports
from tffcl.errors import InputError
from tffcl.program.results import results_of
from tffcl.reports import curves, page, runs, summary, tables
from tffcl.reports.tables import half_width, render

CONFIG = {"num_clients": 2, "num_tasks": 2, "num_rounds": 2, "labels_per_task": 4, "split_seed": 42, "dataset": "trec6"}
T_OF_2 = 4.302652729749464  # 97.5 % quantile of Student's t with 2 degrees of freedom, from a printed table


def events_of(scores, tasks=2, key="accuracy"):
    """A run whose client c has the score `scores[c]` on each task throughout."""
    for task in range(tasks):
        rows = [[score] * (task + 1) for score in scores]
        for place in range(2):
            yield {
                "event": "round", "task": task, "round": place, "participants": [0, 1], key: {str(c): row for c, row in
                enumerate(rows)}, "bytes_up": {"0": 1_000_000, "1": 500_000}, "bytes_down": {"0": 10, "1": 10},
                "seconds": 2.0, "training_seconds": {"wall": 1.0, "cpu": 1.0},
            }  # fmt: skip
        yield {"event": "task_end", "task": task, key: rows, "bytes_up": {"0": 0, "1": 0}, "seconds": 1.0}


def make(folder, method, seed, scores, *, finished=True, key="accuracy", lines=None, **config):
    folder.mkdir(parents=True)
    config = {**CONFIG, "method": method, "seed": seed, **config}
    events = list(events_of(scores, key=key))[:lines]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if finished:
        (folder / "results.json").write_text(json.dumps(results_of(events, key, config).to_json()))
    return folder


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """Two methods with three seeds each, the second with a fourth that has not ended."""
    for seed, (one, other) in enumerate([(0.5, 0.6), (0.6, 0.8), (0.7, 0.8)], start=1):
        make(tmp_path / "a" / f"seed{seed}", "alone", seed, (one, one), data_fingerprint=f"f{seed}")
        make(tmp_path / "b" / "deep" / f"seed{seed}", "fedavg", seed, (other, other - 0.1), penalty=seed * 0 + 0.5)
    make(tmp_path / "b" / "seed4", "fedavg", 4, (0.9, 0.7), finished=False, lines=4, penalty=0.5)
    return tmp_path


@pytest.fixture
def no_pictures(monkeypatch):
    """Pages without their pictures, which another test looks at."""
    monkeypatch.setattr(page.Pictures, "__call__", lambda *_, **__: "")


def test_means_intervals_and_paired_differences_by_hand(folder):
    rows = runs.rows_of(runs.find_runs([folder]))
    assert [(row.name, len(row.runs), len(row.finished)) for row in rows] == [("alone", 3, 3), ("fedavg", 4, 3)]
    table = runs.methods_table(rows, against="alone")
    alone, fedavg = (re.split(r"  +", line) for line in table.splitlines()[2:])
    # alone: 50, 60, 70, s = 10; fedavg: 55, 75, 75; differences 5, 15, 5, s = 10 / sqrt(3).
    assert alone[:3] == ["alone", "3", f"60.0 +- {T_OF_2 * 10 / 3**0.5:.1f}"]
    assert fedavg[2].startswith("68.3 +- ")
    assert fedavg[-2] == f"+8.3 +- {T_OF_2 * 10 / 3:.1f}"
    # t = mean / (s / sqrt(n)) = (25 / 3) / (10 / 3) = 2.5; two-sided p with 2 degrees of freedom in closed form.
    assert float(fedavg[-1]) == pytest.approx(1 - 2.5 / (2 + 2.5**2) ** 0.5, abs=5e-4)
    assert alone[-2:] == ["-", "-"]
    assert half_width([50.0, 60.0, 70.0]) == pytest.approx(T_OF_2 * 10 / 3**0.5)


def test_pictures_have_a_line_and_a_bar_for_each_method_over_its_seeds(folder, capsys, monkeypatch):
    drawn = {}
    monkeypatch.setattr(summary, "plot_average_so_far", lambda rows, path, **lines: drawn.update(rows) or path)
    summary.report([folder], compare=folder / "pictures")
    plots = [line.rsplit("/", 1)[1] for line in capsys.readouterr().out.splitlines() if line.startswith("plot: ")]
    assert plots == ["accuracy-so-far.png", "accuracy-by-task.png"]
    scores = {name: [one["task_averaged_test_accuracy"] for one in results] for name, results in drawn.items()}
    assert scores["alone"] == pytest.approx([0.5, 0.6, 0.7])
    assert scores["fedavg"] == pytest.approx([0.55, 0.75, 0.75])


def test_what_has_not_ended_is_shown_as_far_as_it_is_and_counts_in_no_mean(folder):
    table = runs.unfinished_table(runs.rows_of(runs.find_runs([folder])))
    cells = re.split(r"  +", table.splitlines()[2])
    assert cells == ["fedavg", "4", str(folder / "b" / "seed4"), "3 of 4 rounds", "accuracy 80.0 % (higher is better)",
                     "4.5 MB"]  # fmt: skip
    assert len(table.splitlines()) == 3
    (folder / "b" / "seed4" / "history.jsonl").unlink()  # before its first round has ended
    assert "0 of 4 rounds" in runs.unfinished_table(runs.rows_of(runs.find_runs([folder / "b"])))


def test_settings_set_methods_apart_and_seeds_do_not(tmp_path):
    for number, (seed, rate, split) in enumerate([(1, 0.1, 1), (2, 0.1, 2), (1, 0.01, 1)]):
        make(tmp_path / str(number), "ewc", seed, (0.5, 0.5), learning_rate=rate, split_seed=split)
    make(tmp_path / "other", "ewc", 1, (0.5, 0.5), learning_rate=0.1, dataset="r8")
    found = runs.find_runs([tmp_path])
    rows = runs.rows_of(found)
    assert [(row.name, len(row.runs)) for row in rows] == [
        ("ewc on trec6 (learning_rate 0.1)", 2), ("ewc on trec6 (learning_rate 0.01)", 1), ("ewc on r8", 1),
    ]  # fmt: skip
    assert runs.row_called("ewc on r8", rows) is rows[2]
    assert runs.row_called("ewc", rows[2:]) is rows[2]
    with pytest.raises(InputError, match="no row is called 'ewc'; rows: ewc on trec6"):
        runs.row_called("ewc", rows)  # which of them?
    assert "learning_rate" in runs.differences_table(rows)
    assert "num_rounds" in runs.common_table(rows)
    assert len(runs.rows_of(found, "run")) == 4


def test_a_run_that_was_repeated_counts_once(tmp_path, caplog):
    for name in ("x", "y"):
        make(tmp_path / name, "ewc", 1, (0.5, 0.5))
    (row,) = runs.rows_of(runs.find_runs([tmp_path, tmp_path / "x", f"{tmp_path}/x/../y"]))
    assert [run.folder.name for run in row.runs] == ["x"]


def test_a_method_without_spread_has_no_significance(tmp_path):
    for method, score in (("one", 0.5), ("two", 0.75)):
        for seed in (1, 2):
            make(tmp_path / method / str(seed), method, seed, (score, score))
    rows = runs.rows_of(runs.find_runs([tmp_path]))
    assert re.split(r"  +", runs.methods_table(rows, against="one").splitlines()[3])[-2:] == ["+25.0 +- 0.0", "-"]
    assert runs.chance(rows) == 25.0


def test_the_page_holds_all_and_loads_nothing(folder, capsys):
    output = folder / "report.html"
    summary.report([folder], against="alone", output=output)
    assert capsys.readouterr().out == f"report: {output}\n"
    html = output.read_text()
    for part in ("+8.3 &plusmn;", "3 of 4 rounds", "Client 2", "penalty", "Settings that all share", "seed 4"):
        assert part in html
    addresses = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^")>]+)', html)
    assert addresses
    assert all(each.startswith(("data:image/svg+xml;base64,", "#")) for each in addresses)
    for picture in re.findall(r"base64,([^\"]+)", html):
        assert xml.etree.ElementTree.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    assert "<script" not in html
    ids = set(re.findall(r'id="([^"]+)"', html))
    assert {each[1:] for each in addresses if each.startswith("#")} == ids


def test_names_of_the_user_are_text_in_a_page(tmp_path):
    make(tmp_path / "run", "<script>alert(1)</script>", 1, (0.5, 0.5))
    summary.report([tmp_path / "run"], form="html", output=tmp_path / "page")
    assert "<script" not in (tmp_path / "page").read_text()


@pytest.mark.parametrize(
    ("form", "parts"),
    [
        ("text", ["alone ", "  60.0 +- 24.8"]),
        ("markdown", ["| alone ", " 60.0 +- 24.8 |"]),
        (
            "latex",
            [r"\begin{tabular}{lrrrrrr}", r"accuracy \% (higher is better)", r"60.0 $\pm$ 24.8 &", r"\bottomrule"],
        ),
        ("html", ["<!DOCTYPE html>", "60.0 &plusmn; 24.8</td>"]),
    ],
)
@pytest.mark.usefixtures("no_pictures")
def test_every_format_goes_to_the_terminal(folder, capsys, form, parts):
    summary.report([folder], form=form)
    out = capsys.readouterr().out
    assert all(part in out for part in parts), out


def test_cells_of_the_user_are_text_in_every_format():
    cell = "a&b%_{<"
    assert "a&amp;b%_{&lt;" in render(["x"], [[cell]], form="html")
    assert r"a\&b\%\_\{$<$" in render(["x"], [[cell]], form="latex")


def test_densities_have_their_own_columns_and_curve(tmp_path):
    for seed in (1, 2):
        make(tmp_path / str(seed), "confedmade", seed, (80.0 + seed, 90.0), key="nll")
    rows = runs.rows_of(runs.find_runs([tmp_path]))
    header, _, line = runs.methods_table(rows).splitlines()
    assert "NLL nats (lower is better)" in header
    assert "accuracy" not in header
    assert "85.75 +- 3.18" in line  # 85.5 and 86.0: tan(0.475 pi) / 4
    np.testing.assert_allclose(curves.average_so_far(rows[0].runs[0].results), [85.5, 85.5])


def test_mean_so_far_with_its_band_chance_and_joint(folder, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curves.figures, "save", lambda figure, path, *_: drawn.append(figure))
    rows = runs.rows_of(runs.find_runs([folder]))
    named = {row.name: [run.results for run in row.finished] for row in rows}
    curves.plot_average_so_far(named, tmp_path / "a.png", chance=25.0, references={"offline": [90.0, 94.0]})
    (axis,) = drawn[0].axes
    alone, fedavg, joint, guess = axis.lines
    np.testing.assert_allclose(alone.get_ydata(), [60, 60])
    np.testing.assert_allclose(fedavg.get_ydata(), [205 / 3] * 2)
    assert list(joint.get_ydata()) == [92, 92]
    assert list(guess.get_ydata()) == [25, 25]
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((60 - half_width([50, 60, 70]), 60 + half_width([50, 60, 70])))
    with pytest.raises(InputError, match="all scored alike, got accuracy, nll"):
        curves.plot_average_so_far({"a": [{"accuracy": [[[0.5]]]}, {"nll": [[[9.0]]]}]}, tmp_path / "b.png")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--against", "nobody"], ["--against", "'nobody'", "alone, fedavg"]),
        (["--format", "word"], ["--format", "'word'", "latex"]),
        (["--group-by", "moon"], ["--group-by", "'moon'", "method"]),
        (["--plot-format", "gif"], ["--plot-format", "'gif'", "svg"]),
        (["--output", "."], ["--output"]),
        (["--output", "gone/below/report.html"], ["gone/below"]),
    ],
)
@pytest.mark.usefixtures("no_pictures")
def test_wrong_flags_are_one_line(run, folder, flags, parts):
    wrong(run("report", folder, *flags, cwd=folder), *parts)


def test_folders_without_runs_are_one_line(run, tmp_path):
    (tmp_path / "empty").mkdir()
    wrong(run("report", tmp_path / "empty"), "empty", "found no config.json in or below it")
    (tmp_path / "file").write_text("x")
    wrong(run("report", tmp_path / "file"), "file: no such run directory")
    make(tmp_path / "broken", "ewc", 1, (0.5, 0.5))
    (tmp_path / "broken" / "config.json").write_text("[1")
    wrong(run("report", tmp_path), "config.json")


ROUND = {"event": "round", "task": 0, "round": 0, "accuracy": {"0": [0.5]}}


def write_history(folder, content):
    (folder / "history.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())


def test_history_in_order(tmp_path):
    events = [ROUND, {**ROUND, "round": 1}, {"event": "task_end", "task": 0}, {**ROUND, "task": 1}]
    write_history(tmp_path, "".join(json.dumps(event) + "\n" for event in events))
    assert reports.load_history(tmp_path) == events
    assert reports.load_history(str(tmp_path)) == events


def test_a_cut_at_any_byte_of_the_last_line_is_tolerated(tmp_path):
    whole = json.dumps(ROUND).encode() + b"\n"
    last = json.dumps({**ROUND, "round": 1, "note": "\u00e9"}, ensure_ascii=False).encode()
    for cut in range(len(last)):
        write_history(tmp_path, whole + last[:cut])
        assert reports.load_history(tmp_path) == [ROUND]
    write_history(tmp_path, whole + last)
    assert len(reports.load_history(tmp_path)) == 2


def test_separators_inside_a_line_do_not_cut_it(tmp_path):
    event = {**ROUND, "note": "a\u0085b\u2028c"}
    write_history(tmp_path, json.dumps(event, ensure_ascii=False) + "\n")
    assert reports.load_history(tmp_path) == [event]


def test_the_newer_line_of_a_round_counts(tmp_path):
    newer = {**ROUND, "accuracy": {"0": [0.6]}}
    second = {**ROUND, "round": 1}
    write_history(tmp_path, "\n".join(map(json.dumps, [ROUND, second, newer])) + "\n")
    assert reports.load_history(tmp_path) == [newer, second]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{broken\n" + json.dumps(ROUND) + "\n", "line 1: not valid JSON"),
        ("[1]\n", "line 1: expected a JSON object, found list"),
        (b"\xff\xfe\n" + json.dumps(ROUND).encode(), "line 1: not valid JSON"),
    ],
)
def test_damage_elsewhere_names_the_line(tmp_path, content, message):
    write_history(tmp_path, content)
    with pytest.raises(InputError, match=message) as caught:
        reports.load_history(tmp_path)
    assert "\n" not in str(caught.value)


LOADERS = {"results.json": reports.load_results, "history.jsonl": reports.load_history}


@pytest.mark.parametrize("name", LOADERS)
def test_what_is_missing_is_said_with_the_way_out(tmp_path, name):
    load = LOADERS[name]
    with pytest.raises(InputError, match="nothing: no such run directory"):
        load(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: no such run directory"):
        load(tmp_path / "file")
    with pytest.raises(InputError, match=r"expected a run directory, found no config\.json in it"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    words = {"results.json": "resume the run to finish it", "history.jsonl": "no such file; expected the history"}
    with pytest.raises(InputError, match=words[name]):
        load(tmp_path)


@pytest.mark.parametrize(
    "content", ['{"method": ', "null", "[]", "3", '"x"', "\xff", "[" * 100_000, '{"a": ' * 65 + "1" + "}" * 65]
)
def test_results_of_another_kind_are_one_line(tmp_path, content):
    path = tmp_path / "results.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=r"results\.json: (not valid JSON|expected a JSON object)") as caught:
        reports.load_results(tmp_path)
    assert "\n" not in str(caught.value)
    path.write_text('{"method": "fedseit"}')
    assert reports.load_results(tmp_path) == {"method": "fedseit"}


def test_total_of_nested_numbers():
    assert tables.total({"0": [1, 2], "1": {"a": 3.5, "b": None}}) == 6.5
    assert tables.total(7) == 7
