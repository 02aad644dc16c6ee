"""The state in which a run starts."""

from __future__ import annotations

import types
from collections import OrderedDict

import numpy as np

from tffcl.program import state as lib
from tffcl.program.results import Settings
from tffcl.program.run_directory import RunDirectory


def _process(**entries):
    return types.SimpleNamespace(
        initialize=lambda: {"shared": np.zeros(1)},
        initialize_clients=lambda server, keys: [OrderedDict(key=key, **entries) for key in keys],
        knowledge_size=0,
    )


def test_secrets_are_the_operating_system_s_and_keys_the_seed_s():
    process, settings = _process(secret=np.zeros(2, np.int32)), Settings(1, seed=7)
    first, second = (lib.first_state(process, 3, settings).store for _ in range(2))
    secrets = [tuple(store[client]["secret"]) for store in (first, second) for client in range(3)]
    assert len(set(secrets)) == 6
    assert all(store[0]["secret"].dtype == np.int32 for store in (first, second))
    for client in range(3):
        np.testing.assert_array_equal(first[client]["key"], second[client]["key"])
        np.testing.assert_array_equal(first[client]["key"], lib.client_key(7, client))


def test_who_needs_no_secret_has_none():
    store = lib.first_state(_process(), 2, Settings(1, seed=7)).store
    assert list(store[1]) == ["key"]


def test_a_run_that_goes_on_keeps_its_secrets(tmp_path):
    process, settings = _process(secret=np.zeros(2, np.int32)), Settings(1, seed=7)
    names = (lib.SUMMARIES, lib.PARTICIPANTS)
    first, other = (lib.start(process, 2, settings, lambda state: state, secret=names) for _ in range(2))
    directory = RunDirectory(tmp_path)
    directory.history.append({"event": "round"})
    directory.save(first)
    restored = RunDirectory(tmp_path).restore(other)
    for client in range(2):
        np.testing.assert_array_equal(restored.store[client]["secret"], first.store[client]["secret"])
        assert not np.array_equal(other.store[client]["secret"], first.store[client]["secret"])
    assert [first.secrets[name].shape for name in names] == [(2, 2), (2,)]
    assert len({*first.secrets[names[0]].flat, *first.secrets[names[1]], *other.secrets[names[0]].flat}) == 10
    for name in names:
        np.testing.assert_array_equal(restored.secrets[name], first.secrets[name])
        assert not np.array_equal(other.secrets[name], first.secrets[name])


def test_participants_follow_from_the_secret_where_there_is_one():
    secrets, seeds = [np.array([5, number], np.int32) for number in (-1, 2)], (7, 8)

    def drawn(seed, secret):
        return [lib.sample_clients(Settings(9, seed, 3), range(10), 1, number, secret) for number in range(9)]

    assert drawn(7, secrets[0]) == drawn(8, secrets[0])
    assert drawn(7, secrets[0]) != drawn(7, secrets[1])
    assert len({str(drawn(seed, None)) for seed in seeds}) == 2
    assert all(sorted(set(one)) == one and len(one) == 3 for one in drawn(7, secrets[0]))
