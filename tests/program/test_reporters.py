"""Progress: what a log, a terminal and a notebook show, and how good the estimate of what is left is."""

from __future__ import annotations

import io
import logging
import sys

import pytest
import tqdm.auto
import tqdm.notebook

from tffcl.program import reporters
from tffcl.program.reporters import Estimate, ProgressBar
from tffcl.runtime import quiet


def run_of(num_tasks, num_rounds, seconds=lambda task, place: 1.0, score="accuracy", value=0.5):
    """The events of a run whose rounds take `seconds(task, place)`; the end of a task is place -1."""
    for task in range(num_tasks):
        for place in range(num_rounds):
            scores = {"0": [value] * (task + 1)}
            yield {"event": "round", "task": task, "round": place, score: scores, "seconds": seconds(task, place)}
        yield {"event": "task_end", "task": task, score: [[value] * (task + 1)], "seconds": seconds(task, -1)}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(events, num_tasks, num_rounds, file=None, past=(), **options):
    file = file or io.StringIO()
    bar = ProgressBar(file, **options)
    bar.start(num_tasks, num_rounds, past)
    for event in events:
        bar.report(event)
    bar.close()
    return file.getvalue()


SCHEDULES = {
    "equal rounds": lambda task, place: 2.0,
    "compilation": lambda task, place: 40.0 if (task, place) in ((0, 0), (0, -1)) else 1.0,
    "a dear start of each task": lambda task, place: (60.0 if task == 0 else 20.0) if place == 0 else 2.0,
    "patience": lambda task, place: (30.0 if task == 0 else 14.0) if place == 0 else 6.0 / (2 + place),
    "a dear end of each task": lambda task, place: 12.0 if place == -1 else 3.0,
}


@pytest.mark.parametrize("seconds", SCHEDULES.values(), ids=SCHEDULES)
def test_from_the_second_round_on_the_estimate_is_not_off_by_three(seconds):
    events = list(run_of(5, 6, seconds))
    estimate = Estimate(5, 6)
    for number, event in enumerate(events[:-1]):
        estimate.add(event)
        left, actual = estimate.left(), sum(each["seconds"] for each in events[number + 1 :])
        assert (left is None) == (number == 0)
        if left is not None:
            assert actual / 3 < left < actual * 3
    estimate.add(events[-1])
    assert estimate.left() == 0


def test_a_run_that_goes_on_is_estimated_from_its_past():
    events = list(run_of(3, 4, SCHEDULES["compilation"]))
    assert "about 4 s left" in shown(events[10:11], 3, 4, past=events[:10], every=0)


@pytest.mark.parametrize(
    ("score", "value", "text"),
    [("accuracy", 0.786, "accuracy 78.6 % (higher is better)"), ("nll", 93.2, "NLL 93.20 nats (lower is better)")],
)
def test_a_score_has_a_name_a_unit_and_a_direction(score, value, text):
    assert text in shown(run_of(1, 2, score=score, value=value), 1, 2)
    assert text in shown(run_of(1, 2, score=score, value=value), 1, 2, Terminal())


def test_a_log_gets_whole_lines_at_once_and_not_more_than_it_asked_for(monkeypatch):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(reporters.time, "monotonic", lambda: next(clock))
    lines = shown(run_of(2, 6), 2, 6, every=10.0).splitlines()
    assert lines[0] == "compiling, then round 1 of 12 ..."
    assert [line.split(",")[0] for line in lines[1:]] == [f"round {done} of 12" for done in (3, 6, 8, 11, 12)]
    assert "left" not in lines[-1]
    assert not any("\r" in line or "\x1b" in line for line in lines)


def test_every_round_in_a_verbose_log_with_the_losses():
    events = [dict(event, loss={"0": 0.25, "1": 1.5}) for event in run_of(1, 3)]
    lines = shown(events, 1, 3, verbose=True).splitlines()
    assert [line.startswith(f"round {place} of 3") for place, line in enumerate(lines)][1:4] == [True] * 3
    assert "loss by client 0.25, 1.5" in lines[1]


def test_a_terminal_has_one_bar_that_says_what_it_waits_for():
    text = shown(run_of(2, 3), 2, 3, Terminal())
    assert text.startswith("\rcompiling |")
    assert "6/6 rounds" in text.split("\r")[-1]
    assert text.count("\n") == 1


def test_a_finished_run_shows_no_progress():
    events = list(run_of(2, 2))
    assert shown([], 2, 2, past=events) == ""


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 3)])
def test_a_run_continued_with_other_rounds_counts_those_that_there_are(before, now):
    past = list(run_of(2, before))
    new = [{**event, "task": 2} for event in run_of(1, now)]
    lines = shown(new, 3, now, past=past, verbose=True).splitlines()
    total = 2 * before + now
    assert lines[0] == f"compiling, then round {2 * before + 1} of {total} ..."
    assert lines[now].startswith(f"round {total} of {total}, task 3 of 3")
    estimate = Estimate(3, now)
    for event in past:
        estimate.add(event)
    assert estimate.left() is None or estimate.left() == pytest.approx(now + 1.0)  # its rounds and its end


def test_a_notebook_gets_its_own_bar(monkeypatch):
    made = {}

    class Bar(tqdm.notebook.tqdm_notebook):
        def __init__(self, **options):
            made.update(options)

        def noted(self, *args, **options):
            made.setdefault("calls", []).append(args)

        set_description = set_postfix_str = update = close = noted

    monkeypatch.setattr(tqdm.auto, "tqdm", Bar)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    bar = ProgressBar()
    bar.start(1, 2, [])
    for event in run_of(1, 2):
        bar.report(event)
    bar.close()
    assert made["total"] == 2
    assert any("accuracy" in str(call) for call in made["calls"])


@pytest.mark.parametrize(
    ("shown", "is_quiet", "there", "expected"),
    [
        (False, False, False, "importing TensorFlow ...\n"),  # a script or a notebook
        (True, False, False, ""),  # the log has the line
        (False, True, False, ""),
        (False, False, True, ""),
    ],
)
def test_the_import_is_announced_once_where_it_takes_time(monkeypatch, capsys, shown, is_quiet, there, expected):
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    if not there:
        monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda logger: shown)
    quiet.announce_import(is_quiet)
    assert capsys.readouterr().err == expected
