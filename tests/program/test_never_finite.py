"""Clients that are never finite, in each of the systems: left out, said so, and nothing of them goes to others."""

from __future__ import annotations

import io

import numpy as np
import pytest
import rehearsing
import small
import systems

from tffcl import runtime
from tffcl.algorithms import build_confedmade, build_fedseit, build_fil_ver
from tffcl.client_works import LocalTraining
from tffcl.models import MADEConfig
from tffcl.program import ProgressBar, run_program
from tffcl.transfers import NoTransfer, PreviousTask

# Within a few steps every parameter of every client is infinite or not a number.
TRAINING = LocalTraining(num_epochs=4, batch_size=4, learning_rate=1e38)


SYSTEMS = {
    "fedseit": (systems.documents, lambda: build_fedseit(small.config(), num_foreign=1, training=TRAINING)),
    "confedmade": (systems.bits, lambda: build_confedmade(MADEConfig(4, (5,)), num_foreign=1, training=TRAINING)),
    "fil-ver": (
        systems.vectors,
        lambda: build_fil_ver(rehearsing.model(hidden=(5,)), client_memory=4, training=TRAINING),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_whole_run_of_clients_that_are_never_finite(system, tmp_path):
    make, build = SYSTEMS[system]
    recorder, shown = systems.Recorder(), io.StringIO()
    with runtime.in_process():
        process = build()
        transfer = PreviousTask() if process.num_foreign else NoTransfer()
        results = run_program(
            process, systems.Data(make), transfer, num_rounds=2, seed=1, reporters=[recorder, ProgressBar(shown)],
            summarise=lambda _: np.zeros([1, 1], np.float32), output_dir=tmp_path / "run",
        )  # fmt: skip
    rounds = [event for event in recorder.events if event["event"] == "round"]
    assert [event["left_out"] for event in rounds] == [[0, 1]] * 4
    assert all(event["sent"] == {"0": 0, "1": 0} for event in rounds)
    assert shown.getvalue().count("client(s) 0, 1 left out: its training was not finite") == 4
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
