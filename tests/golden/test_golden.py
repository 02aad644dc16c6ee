"""Small runs of every paper end as they did when they were recorded: `golden.py check` compares all of them."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from loading import module_at
from run_directories import assert_complete

from tffcl.flags import parse_run

golden = module_at(pathlib.Path(__file__).with_name("golden.py"))
QUICK = ("density-confedmade",)
SLOW = (
    "text-fedavg", "text-fedseit-sit", "text-fedweit", "text-local", "density-replay", "density-fedcurv",
    "density-agnostic", "domain-fil-ver", "domain-ebr", "domain-naive-end-to-end",
)  # fmt: skip


def record(name):
    return json.loads((golden.RECORDS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_run_ends_as_recorded(name):
    found = golden.run(name)
    assert golden.compared(found, record(name)) == []
    experiment = parse_run(golden.RUNS[name][1:])
    scores = np.array(found["results"]["nll" if experiment.kind == "binary" else "accuracy"], float)
    assert_complete(experiment, scores, scores[:, -1], found["history"])


@pytest.mark.parametrize("pair", golden.PAIRS, ids="-".join)
def test_a_record_is_of_its_pair_of_method_and_data(pair):
    name = golden.PAIRS[pair]
    assert name in (*QUICK, *SLOW)
    experiment = parse_run(golden.RUNS[name][1:])
    assert (experiment.method.name, experiment.kind) == pair


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
