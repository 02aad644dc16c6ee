"""The state in which a run starts."""

from __future__ import annotations

import types
from collections import OrderedDict

import numpy as np

from tffcl.program import state as lib
from tffcl.program.run_directory import RunDirectory
from tffcl.program.settings import Settings


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
    first, other = (lib.first_state(process, 2, settings) for _ in range(2))
    directory = RunDirectory(tmp_path)
    directory.history.append({"event": "round"})
    directory.save(first)
    restored = RunDirectory(tmp_path).restore(other)
    for client in range(2):
        np.testing.assert_array_equal(restored.store[client]["secret"], first.store[client]["secret"])
        assert not np.array_equal(other.store[client]["secret"], first.store[client]["secret"])
