"""Clients that are never finite, in each of the systems: left out, said so, and nothing of them goes to others."""

from __future__ import annotations

import io
from collections import OrderedDict

import numpy as np
import pytest
import rehearsing
import small

from tffcl import runtime
from tffcl.algorithms import build_confedmade, build_fedseit, build_fil_ver
from tffcl.client_works import LocalTraining
from tffcl.models import MADEConfig
from tffcl.program import ClientTask, ProgressBar, run_program
from tffcl.transfers import NoTransfer, PreviousTask

# Within a few steps every parameter of every client is infinite or not a number.
TRAINING = LocalTraining(num_epochs=4, batch_size=4, learning_rate=1e38)


def _fedseit(seed):
    test, train, few = (small.examples(count, seed) for count in (5, 8, 2))
    return ClientTask(small.context(), train, few, small.context(), test, small.CLASSES)


def _confedmade(seed):
    def bits(count):
        return OrderedDict(x=np.random.default_rng(seed).integers(0, 2, (count, 4)).astype(np.uint8))

    context = OrderedDict(observed=np.ones(4, np.float32))
    return ClientTask(context, bits(8), bits(2), context, bits(5))


def _fil_ver(seed):
    test, train, few = (rehearsing.examples(count, seed) for count in (5, 8, 2))
    return ClientTask({}, train, few, {}, test, rehearsing.CLASSES)


SYSTEMS = {
    "fedseit": (_fedseit, lambda: build_fedseit(small.config(), num_foreign=1, training=TRAINING)),
    "confedmade": (
        _confedmade,
        lambda: build_confedmade(MADEConfig(4, (5,)), num_foreign=1, training=TRAINING),
    ),
    "fil-ver": (
        _fil_ver,
        lambda: build_fil_ver(rehearsing.model(hidden=(5,)), client_memory=4, training=TRAINING),
    ),
}


class Data:
    """Two clients, two tasks."""

    num_clients, num_tasks = 2, 2

    def __init__(self, make):
        self._make = make

    def task(self, client, task):
        return self._make(2 * client + task)


class Recorder:
    def __init__(self):
        self.events = []

    def start(self, num_tasks, num_rounds, past):
        pass

    def report(self, event):
        self.events.append(event)

    def close(self):
        pass


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_whole_run_of_clients_that_are_never_finite(system, tmp_path):
    make, build = SYSTEMS[system]
    recorder, shown = Recorder(), io.StringIO()
    with runtime.in_process():
        process = build()
        transfer = PreviousTask() if process.num_foreign else NoTransfer()
        results = run_program(
            process, Data(make), transfer, num_rounds=2, seed=1, reporters=[recorder, ProgressBar(shown)],
            summarise=lambda _: np.zeros([1, 1], np.float32), output_dir=tmp_path / "run",
        )  # fmt: skip
    rounds = [event for event in recorder.events if event["event"] == "round"]
    assert [event["left_out"] for event in rounds] == [[0, 1]] * 4
    assert all(event["sent"] == {"0": 0, "1": 0} for event in rounds)
    assert shown.getvalue().count("non-finite update of client(s) 0, 1 left out") == 4
    ends = [event for event in recorder.events if event["event"] == "task_end"]
    learned_nothing = [0, 1] if process.num_foreign else None
    assert [event.get("nothing_learned") for event in ends] == [learned_nothing] * 2
    told = shown.getvalue().count("client(s) 0, 1 have learned nothing and send nothing to the others")
    assert told == (2 if process.num_foreign else 0)
    # Nothing of them became an entry, which others would have received for the second task.
    assert ends[1]["selection"] == {"0": [], "1": []}
    assert all(sent == 0 for event in ends for sent in event["bytes_up"].values())
    scores = results.to_json()
    scores = scores["nll"] if system == "confedmade" else scores["accuracy"]
    assert np.isfinite(np.array(scores, float)[:, 1]).all()
