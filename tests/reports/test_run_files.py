"""Run directories: whole, cut short by a kill, damaged."""

import json

import pytest

from tffcl import reports
from tffcl.errors import InputError
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
    assert run_files.total({"0": [1, 2], "1": {"a": 3.5, "b": None}}) == 6.5
    assert run_files.total(7) == 7
