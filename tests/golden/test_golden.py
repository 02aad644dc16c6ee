"""Small runs of every paper end as they did when they were recorded: `golden.py check` compares all of them."""

from __future__ import annotations

import json
import pathlib

import pytest
from loading import module_at

golden = module_at(pathlib.Path(__file__).with_name("golden.py"))
QUICK = ("text-fedavg", "density-confedmade")
SLOW = (
    "text-fedseit-sit", "text-fedweit", "text-local", "density-replay", "density-fedcurv", "density-agnostic",
    "domain-fil-ver", "domain-ebr", "domain-naive-end-to-end",
)  # fmt: skip


def record(name):
    return json.loads((golden.RECORDS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_run_ends_as_recorded(name):
    assert golden.compared(golden.run(name), record(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text-fedseit-sit", "density-confedmade"])
def test_a_worker_ends_as_this_process(name):
    assert golden.compared(golden.run(name, "local"), record(name), "local") == []


def test_every_run_has_its_record_and_none_is_left_over():
    assert {path.stem for path in golden.RECORDS.glob("*.json")} == set(golden.RUNS)


def test_a_digit_more_or_less_is_found():
    recorded = record("text-fedseit-sit")
    found = {name: value for name, value in json.loads(json.dumps(recorded)).items() if name != "probe"}
    here = {**recorded, "probe": golden.probe()}
    assert golden.compared(found, here) == []
    found["history"][0]["loss"]["0"] *= 1 + 1e-7
    (line,) = golden.compared(found, here)
    assert line.startswith(".history[0].loss.0: ")
    assert golden.compared(found, {**recorded, "probe": "another machine"}) == []
    found["results"]["accuracy"][0][0][0] += 0.2
    assert len(golden.compared(found, {**recorded, "probe": "another machine"})) == 1
