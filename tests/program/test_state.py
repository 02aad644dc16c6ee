"""The state of a run: of clients between calls, in which it starts, and who takes part."""

from __future__ import annotations

import types
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl import archive
from tffcl.errors import ContractError
from tffcl.program import ClientStore, merge, project
from tffcl.program import state as lib
from tffcl.program.results import Settings
from tffcl.program.run_directory import RunDirectory

STATE = OrderedDict(a=np.float32(1), b=np.ones(2, np.float32), c=np.int32(3))


def kind(*names):
    return tff.to_type(OrderedDict((name, tff.TensorType(np.float32)) for name in names))


def test_project_takes_the_named_entries_in_the_order_of_the_type():
    assert list(project(STATE, kind("c", "a"))) == ["c", "a"]
    assert list(project(STATE, tff.FederatedType(kind("b"), tff.CLIENTS))) == ["b"]


def test_merge_replaces_only_what_came_back():
    merged = merge(STATE, {"b": np.zeros(2, np.float32)})
    assert list(merged) == ["a", "b", "c"]
    assert (merged["b"].tolist(), merged["a"]) == ([0, 0], 1)
    assert STATE["b"].tolist() == [1, 1]
    assert merged["c"].dtype == np.int32


def test_unknown_entries_are_named():
    with pytest.raises(ContractError, match="needs the entry 'x'"):
        project(STATE, kind("a", "x"))
    with pytest.raises(ContractError, match="returned the entry 'x'"):
        merge(STATE, {"x": 1})


def test_store_keeps_clients_apart():
    store = ClientStore([STATE, STATE, STATE])
    store.merge([2, 0], [{"a": np.float32(5)}, {"a": np.float32(7)}])
    assert [float(store[client]["a"]) for client in range(len(store))] == [7, 1, 5]
    assert store.project([2], kind("a")) == [{"a": 5}]


def test_a_store_says_how_large_a_state_is_and_how_often_each_entry_changed():
    store = ClientStore([STATE, STATE])
    assert (store.num_bytes(0), store.versions(0)) == (16, {"a": 0, "b": 0, "c": 0})
    store.merge([0], [{"b": np.zeros(5, np.float32)}])
    assert (store.num_bytes(0), store.versions(0)) == (28, {"a": 0, "b": 1, "c": 0})
    assert store.versions(1) == {"a": 0, "b": 0, "c": 0}


def test_nothing_is_read_or_written_but_what_a_computation_takes_and_returns(monkeypatch):
    """Past tasks, which a round does not touch, may be many times what it does."""
    monkeypatch.setattr(archive, "MEMORY_BYTES", 0)
    store = ClientStore([STATE, STATE])
    touched = []
    for name in ("__getitem__", "__setitem__"):
        plain = getattr(archive.Shelf, name)
        monkeypatch.setattr(
            archive.Shelf, name, lambda self, key, *value, plain=plain: touched.append(key) or plain(self, key, *value)
        )
    store.project([1], kind("a"))
    store.merge([1], [{"c": np.int32(5)}])
    assert list(store.entries(0, ["b"])) == ["b"]
    assert touched == [(1, "a"), (1, "c"), (0, "b")]


def test_an_entry_that_the_state_lacks_is_not_merged():
    store = ClientStore([STATE])
    with pytest.raises(ContractError, match="returned the entry 'x'"):
        store.merge([0], [{"a": np.float32(9), "x": 1}])
    assert store[0]["a"] == 1


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
