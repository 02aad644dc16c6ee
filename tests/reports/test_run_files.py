"""Run directories: whole, cut short by a kill, damaged."""

import json
import os

import pytest

from tffcl import reports
from tffcl.errors import InputError, RunError
from tffcl.reports import run_files

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
        ("[1]\n", "line 1: expected a JSON object, got list"),
        (b"\xff\xfe\n" + json.dumps(ROUND).encode(), "line 1: not valid JSON"),
    ],
)
def test_damage_elsewhere_names_the_line(tmp_path, content, message):
    write_history(tmp_path, content)
    with pytest.raises(InputError, match=message) as caught:
        reports.load_history(tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_files_and_wrong_results(tmp_path):
    with pytest.raises(InputError, match=r"history\.jsonl: cannot be read .*expected a run directory"):
        reports.load_history(tmp_path)
    with pytest.raises(InputError, match=r"results\.json: cannot be read .*resume the run"):
        reports.load_results(tmp_path)
    (tmp_path / "results.json").write_text('{"method": ')
    with pytest.raises(InputError, match="not valid JSON"):
        reports.load_results(tmp_path)
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(InputError, match="expected a JSON object"):
        reports.load_results(tmp_path)
    (tmp_path / "results.json").write_text('{"method": "fedseit"}')
    assert reports.load_results(tmp_path) == {"method": "fedseit"}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = run_files.write_whole(tmp_path / "new" / "a.png", b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match=r"a\.png: cannot be written \(No space left on device\)"):
        run_files.write_whole(path, b"new")
    assert [(file.name, file.read_bytes()) for file in path.parent.iterdir()] == [("a.png", b"old")]


def test_total_of_nested_numbers():
    assert run_files.total({"0": [1, 2], "1": {"a": 3.5, "b": None}}) == 6.5
    assert run_files.total(7) == 7
