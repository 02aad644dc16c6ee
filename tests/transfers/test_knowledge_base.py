from __future__ import annotations

import os

import numpy as np
import pytest

from tffcl import errors
from tffcl.transfers import KnowledgeBase


def filled(seed: int = 0, clients: int = 3, tasks: int = 2, size: int = 7) -> tuple[KnowledgeBase, np.ndarray]:
    rng = np.random.default_rng(seed)
    base, rows = KnowledgeBase(size), []
    for task in range(tasks):
        for client in range(clients):
            knowledge = (rng.normal(size=size) * (rng.random(size) < 0.5)).astype(np.float32)
            summary = {"centroids": rng.normal(size=[client, 4]).astype(np.float32)} if client else None
            base.add(client, task, knowledge, summary)
            rows.append(knowledge)
    return base, np.array(rows)


def test_entries_come_back_as_they_were_given():
    base, rows = filled()
    assert len(base) == 6
    assert base.entries == ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1))
    assert base.find(2, 1) == 5
    assert base.find(2, 2) is None
    np.testing.assert_array_equal(base.rows([4, 0, 4]), rows[[4, 0, 4]])
    assert base.rows([]).shape == (0, 7)
    assert [base.nonzeros(i) for i in range(6)] == np.count_nonzero(rows, axis=1).tolist()


def test_what_is_kept_does_not_change_with_the_callers_arrays():
    base = KnowledgeBase(2)
    knowledge, centroids = np.ones(2, np.float32), np.ones([1, 2], np.float32)
    base.add(0, 0, knowledge, {"centroids": centroids})
    knowledge[:], centroids[:] = 5.0, 5.0
    np.testing.assert_array_equal(base.rows([0]), [[1.0, 1.0]])
    np.testing.assert_array_equal(base.summary(0)["centroids"], [[1.0, 1.0]])


def test_transfer_in_carries_only_the_rows_that_somebody_needs():
    base, rows = filled()
    sent = base.transfer_in([[4, 1], [], [1]], num_foreign=3)
    assert list(sent) == ["rows", "keys", "count"]
    np.testing.assert_array_equal(sent["rows"], rows[[1, 4]])
    assert sent["rows"].dtype == np.float32
    assert [k.tolist() for k in sent["keys"]] == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert all(k.dtype == np.int32 for k in sent["keys"])
    assert sent["count"] == [2, 0, 1]
    assert all(c.dtype == np.int32 for c in sent["count"])


def test_transfer_in_when_nobody_needs_anything():
    sent = filled()[0].transfer_in([[], []], num_foreign=0)
    np.testing.assert_array_equal(sent["rows"], np.zeros([1, 7], np.float32))
    assert [k.shape for k in sent["keys"]] == [(0,), (0,)]
    assert sent["count"] == [0, 0]


def test_transfer_in_of_too_many_or_unknown_entries():
    base, _ = filled()
    with pytest.raises(errors.InputError, match="selection 1 has 2 entries; a client takes at most 1"):
        base.transfer_in([[0], [0, 1]], num_foreign=1)
    for wrong in (6, -1):
        with pytest.raises(errors.InputError, match=f"no entry {wrong}; it has 6"):
            base.transfer_in([[wrong]], num_foreign=1)


def test_wrong_entries_are_one_clear_error_and_change_nothing():
    base = KnowledgeBase(2)
    base.add(0, 0, np.zeros(2))
    wrong = [
        ((0, 0, np.ones(2)), "client 0, task 0 stands already"),
        ((1, 0, np.ones(3)), r"client 1, task 0 should have shape \[2\], found \[3\]"),
        ((1, 0, np.array([1.0, np.nan])), "client 1, task 0 holds values that are not finite"),
        ((-1, 0, np.ones(2)), "should be 0 or more"),
        ((1, 0, np.ones(2), {"centroids": np.array(["a"])}), "'centroids'.*should be numeric"),
    ]
    for arguments, message in wrong:
        with pytest.raises(errors.InputError, match=message):
            base.add(*arguments)
    assert base.entries == ((0, 0),)
    with pytest.raises(errors.InputError, match="knowledge_size must be"):
        KnowledgeBase(-1)


@pytest.mark.parametrize("tasks", [0, 2])
def test_save_and_load(tmp_path, tasks):
    base, _ = filled(tasks=tasks)
    base.save(tmp_path / "base.npz")
    loaded = KnowledgeBase.load(tmp_path / "base.npz")
    assert loaded.entries == base.entries
    assert loaded.knowledge_size == 7
    everything = range(len(base))
    np.testing.assert_array_equal(loaded.rows(everything), base.rows(everything))
    for entry in everything:
        before, after = base.summary(entry), loaded.summary(entry)
        assert (before is None) == (after is None)
        if before is not None:
            assert before["centroids"].tobytes() == after["centroids"].tobytes()
            assert before["centroids"].shape == after["centroids"].shape
    loaded.add(9, 9, np.ones(7))
    assert loaded.find(9, 9) == len(base)
    assert os.listdir(tmp_path) == ["base.npz"]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "base.npz"
    base, _ = filled()
    base.save(path)
    before = path.read_bytes()

    def full_disk(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(errors.RunError, match=r"cannot write .*base.npz: No space left on device"):
        base.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["base.npz"]
    with pytest.raises(errors.RunError, match="cannot write"):
        base.save(tmp_path / "no folder" / "base.npz")


def test_loading_a_damaged_file_is_one_clear_error(tmp_path):
    path = tmp_path / "base.npz"
    filled()[0].save(path)
    whole = path.read_bytes()
    for kept in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(errors.RunError, match=r"base\.npz"):
            KnowledgeBase.load(path)
    np.savez(path, something=np.zeros(3))
    with pytest.raises(errors.RunError, match="not a whole knowledge base"):
        KnowledgeBase.load(path)
    with pytest.raises(errors.RunError, match="missing.npz: no such file"):
        KnowledgeBase.load(tmp_path / "missing.npz")


def test_entries_are_appended_in_files_of_their_own(tmp_path):
    base, _ = filled()
    whole = [base.entries[:4], base.rows(range(6))]
    first = KnowledgeBase(7)
    for entry, (client, task) in enumerate(whole[0]):
        first.add(client, task, base.rows([entry])[0], base.summary(entry))
    first.save(tmp_path / "first.npz")
    base.save(tmp_path / "second.npz", first=4)
    loaded = KnowledgeBase.load(tmp_path / "first.npz", tmp_path / "second.npz")
    assert loaded.entries == base.entries
    np.testing.assert_array_equal(loaded.rows(range(6)), whole[1])
    assert [loaded.has_summary(entry) for entry in range(6)] == [base.has_summary(entry) for entry in range(6)]
    for names in (["second"], ["first", "first"]):
        with pytest.raises(errors.RunError, match="not a whole knowledge base: its first entry is"):
            KnowledgeBase.load(*(tmp_path / f"{name}.npz" for name in names))


def test_what_memory_does_not_hold_lies_on_the_disk(monkeypatch):
    from tffcl import archive

    expected, _ = filled()
    monkeypatch.setattr(archive, "MEMORY_BYTES", 0)
    base, _ = filled()
    np.testing.assert_array_equal(base.rows(range(6)), expected.rows(range(6)))
    for entry in range(6):
        before, after = expected.summary(entry), base.summary(entry)
        assert (before is None) == (after is None)
        assert before is None or before["centroids"].tobytes() == after["centroids"].tobytes()
    assert len(base._shelf._near) == 1
