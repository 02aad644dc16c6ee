"""Noise on the updates of a run, and its account in the results."""

from __future__ import annotations

import dataclasses
import json
import types
from collections import OrderedDict
from unittest import mock

import numpy as np
import pytest
import systems
import tensorflow_federated as tff
from run_directories import StopAfter, StopError, history

from tffcl import metrics, runtime
from tffcl.aggregators import ClientPrivacy, by_name
from tffcl.program.results import Settings, privacy_accounts
from tffcl.program.state import sample_clients
from tffcl.streams import Enrollment
from tffcl.templates import compose_continual_process
from tffcl.transfers import SIT, CentroidPrivacy, NoTransfer

PRIVACY = ClientPrivacy(clip=0.5, noise_multiplier=4.0, clients_per_round=2, uncovered=("the weather",))


@pytest.fixture(scope="module")
def noisy(tff_context):  # which has to be installed first, for tests here need it too
    with runtime.in_process() as own:
        yield own


@pytest.fixture(scope="module")
def private(tiny, noisy):
    update = tff.to_type({"base": tiny.floats(tiny.SIZE)})
    finalizer = tiny.build_finalizer(tiny.floats(tiny.SIZE), update)
    return compose_continual_process(tiny.TinyWork(), by_name(base=PRIVACY.factory()), finalizer)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_accounts_for_all_rounds(tiny, private, tmp_path):
    options = {"clients_per_round": 2, "privacy": PRIVACY}
    with pytest.raises(StopError):
        tiny.run(private, tmp_path, reporters=[StopAfter(1)], **options)
    tiny.run(private, tmp_path, resume=True, **options)
    rounds = [line["participants"] for line in history(tmp_path) if line["event"] == "round"]
    assert len(rounds) == 6
    told = json.loads((tmp_path / "results.json").read_text())["privacy"]["base_updates"]
    most = max(sum(client in one for one in rounds) for client in range(3))
    assert told["epsilon"] == pytest.approx(metrics.embedding_epsilon(4.0, 1e-5, times=most))
    assert told["epsilon_participants_hidden"] <= told["epsilon"]
    assert told["sampling"] == "a fixed number of clients, without replacement"
    assert (told["rounds"], told["delta"], told["clip"]) == (6, 1e-5, 0.5)
    assert told["uncovered"] == [
        "adaptives in the knowledge base", "metrics and counts of examples", "the weather"
    ]  # fmt: skip


def test_clients_that_come_and_go_are_all_there_in_their_tasks(tiny, private):
    table = ["**o", "x**", "***"]
    results = tiny.run_enrolled(private, table, privacy=PRIVACY)
    told = results.privacy["base_updates"]
    assert told["sampling"] == "all clients in every round"
    assert told["epsilon_participants_hidden"] is None
    assert Enrollment.from_table(table).active(0) == (0, 2)
    assert told["epsilon"] == pytest.approx(metrics.embedding_epsilon(4.0, 1e-5, times=6))  # the client that stays


class Told(SIT):
    """Keeps the seed of the noise on what is told of each task, by its documents."""

    def __init__(self, tiny):
        super().__init__(k=tiny.FOREIGN, q=2, privacy=CentroidPrivacy(clip=2.0, noise_multiplier=5.0))
        self.seeds = {}

    def summarise(self, vectors, seed):
        assert self.seeds.setdefault(vectors.tobytes(), tuple(seed)) == tuple(seed)  # the same at every call
        return super().summarise(vectors, seed)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, 1, 4])
def test_noise_on_summaries_follows_from_secrets_that_a_run_keeps(tiny, process, noisy, tmp_path, stop):
    """Also where it is stopped before its first round is done, when the summaries have been told already."""
    told, again, other = Told(tiny), Told(tiny), Told(tiny)
    failing = mock.Mock(side_effect=StopError, type_signature=process.next.type_signature)
    stopped = process if stop else dataclasses.replace(process, next=failing)
    with pytest.raises(StopError):
        tiny.run(stopped, tmp_path, transfer=told, reporters=[StopAfter(stop)] if stop else ())
    tiny.run(process, tmp_path, transfer=again, resume=True)
    tiny.run(process, transfer=other)  # of the same seed
    twice = set(told.seeds) & set(again.seeds)
    assert len(twice) == 3  # the clients' documents of the task in which the run was stopped
    assert all(told.seeds[vectors] == again.seeds[vectors] for vectors in twice)
    whole = {**told.seeds, **again.seeds}
    assert len({*whole.values(), *other.seeds.values()}) == 18  # three clients, three tasks, two runs
    assert len({seed[:2] for seed in other.seeds.values()}) == 3
    assert not any(number < 2**16 for seed in other.seeds.values() for number in seed[:2])  # once in 10,000 runs


@pytest.mark.slow
def test_draws_that_an_epsilon_rests_on_follow_from_a_secret(tiny, private, process, noisy, tmp_path):
    def drawn(made, **options):
        recorder = systems.Recorder()
        tiny.run(made, reporters=[recorder], num_rounds=8, clients_per_round=2, **options)
        return [event["participants"] for event in recorder.events if event["event"] == "round"]

    by_seed = [sample_clients(Settings(8, 7, 2), range(3), task, number) for task in range(3) for number in range(8)]
    assert drawn(process) == by_seed
    private_draws = drawn(private, privacy=PRIVACY)
    assert private_draws != by_seed  # equal by chance once in 3^24 runs, as are two runs
    assert private_draws != drawn(private, privacy=PRIVACY)


def test_nothing_is_told_where_nothing_is_noised(tiny, process):
    content = tiny.run(process, num_rounds=1).to_json()
    assert "privacy" not in content


def test_noise_on_summaries_has_an_account_of_its_own(tiny, process, noisy):
    centroids = CentroidPrivacy(clip=2.0, noise_multiplier=5.0, steps=2)
    results = tiny.run(process, num_rounds=1, transfer=SIT(k=tiny.FOREIGN, q=2, privacy=centroids))
    told = results.to_json()["privacy"]
    assert list(told) == ["summaries"]
    assert told["summaries"]["epsilon"] == pytest.approx(metrics.embedding_epsilon(5.0, 1e-5, times=2))


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({"delta": np.float32}, []),
        ({"weights": np.float32, "rehearsal": np.float32}, ["examples for rehearsal"]),
        ({"weights": np.float32, "gram": np.float32}, ["Gram sums of layer inputs"]),
    ],
)
def test_what_is_sent_beside_the_noised_updates_is_named(sent, named):
    message = tff.to_type((OrderedDict(sent), np.float32, OrderedDict(loss=np.float32)))
    process = types.SimpleNamespace(message_type=message, num_foreign=0)
    told = privacy_accounts(PRIVACY, [], Enrollment.from_table(["**"]), process, NoTransfer())
    assert told["base_updates"]["uncovered"] == [*named, "metrics and counts of examples", "the weather"]
