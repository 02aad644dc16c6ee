"""Clients that keep their states in files: the same run, what crosses their border, and what is wrong with a file."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow_federated as tff
from placements import leaves, tensors, ways_out
from run_directories import StopAfter, StopError, history

from tffcl import runtime
from tffcl.algorithms import build_fedseit
from tffcl.errors import ContractError, InputError, RunError
from tffcl.program import ClientFiles, read_state
from tffcl.program.client_files import over_handles
from tffcl.program.client_folders import KEPT_VERSIONS
from tffcl.program.results import Settings
from tffcl.program.run_directory import RunDirectory
from tffcl.program.state import first_state, start
from tffcl.templates.messages import entries

NUM_EVENTS = 3 * (2 + 1)  # tasks x (rounds + the task's end)


def versions(folder: pathlib.Path) -> list[int]:
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("state-*.index"))


@pytest.fixture(scope="module")
def in_memory(tiny, process, tmp_path_factory):
    """The directory of a run that has the clients' states in memory."""
    folder = tmp_path_factory.mktemp("memory") / "run"
    tiny.run(process, folder, clients_per_round=2)
    return folder


@pytest.fixture(scope="module")
def in_files(tiny, process, tmp_path_factory):
    """The directory of the same run, with the clients' states in `clients`."""
    folder = tmp_path_factory.mktemp("files") / "run"
    tiny.run(process, folder, clients_per_round=2, client_files=ClientFiles(str(folder.parent / "clients")))
    return folder


def test_the_same_run_to_the_bit(in_memory, in_files):
    assert history(in_files) == history(in_memory)


@pytest.mark.slow
def test_another_worker_goes_on_where_one_was_killed(tiny, process, in_memory, tmp_path):
    with runtime.local(num_workers=2, num_threads=1) as workers:

        class Kill(StopAfter):
            def report(self, event):
                workers.processes[1].close()

        options = {"clients_per_round": 2, "client_files": ClientFiles(str(tmp_path / "clients"))}
        tiny.run(process, tmp_path / "run", reporters=[Kill(1)], **options)
    found, expected = history(tmp_path / "run"), history(in_memory)
    assert [len(line.pop("worker_failures", ())) for line in found] == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    for one, other in zip(found, expected):
        for name, values in other.items():
            if isinstance(values, dict):  # of each client; sums of floats in another order
                np.testing.assert_allclose(
                    [float(np.ravel(one[name][client])[-1]) for client in values if np.size(values[client])],
                    [float(np.ravel(value)[-1]) for value in values.values() if np.size(value)],
                    rtol=1e-5,
                )
            else:
                assert one[name] == values


def test_what_stays_of_a_client(in_files):
    (run,) = (in_files.parent / "clients").glob("run-*")
    assert sorted(path.name for path in run.iterdir()) == [f"client-{number:04d}" for number in range(3)]
    for client in run.iterdir():
        newest = max(versions(client))
        assert versions(client) == list(range(newest - KEPT_VERSIONS + 1, newest + 1))
        assert (client / "about.txt").read_text().startswith(f"The state of client {int(client.name[-4:])} ")
        others = 1 + 3 * 3  # what was removed, and the splits of three tasks; beside them a text
        assert len(list(client.iterdir())) == 2 * (KEPT_VERSIONS + others) + 1


@pytest.mark.slow
def test_stopped_after_every_event_and_moved(tiny, process, in_memory, tmp_path):
    place = tmp_path / "clients-0"
    for number in range(NUM_EVENTS + 1):
        options = {"clients_per_round": 2, "resume": True, "client_files": ClientFiles(str(place))}
        if number == NUM_EVENTS:
            tiny.run(process, tmp_path / "run", **options)
            break
        with pytest.raises(StopError):
            tiny.run(process, tmp_path / "run", reporters=[StopAfter(1)], **options)
        place = place.rename(tmp_path / f"clients-{number + 1}")  # a run finds what was moved
    assert history(tmp_path / "run") == history(in_memory)
    assert len(list(place.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("back", [0, 1])
def test_versions_that_no_checkpoint_knows_of(tiny, process, in_memory, tmp_path, monkeypatch, back):
    """Stopped after files were written, and the last checkpoint too is lost: each state is read as it then was."""
    save, calls = RunDirectory.save, []

    def failing_save(self, state):
        calls.append(state)
        if len(calls) == 6:
            raise StopError
        save(self, state)

    options = {"clients_per_round": 2, "client_files": ClientFiles(str(tmp_path / "clients"))}
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save", failing_save)
        with pytest.raises(StopError):
            tiny.run(process, tmp_path / "run", **options)
    manifests = sorted((tmp_path / "run" / "checkpoints").glob("*.json"))
    for path in manifests[len(manifests) - back :]:
        path.unlink()
    tiny.run(process, tmp_path / "run", resume=True, **options)
    assert history(tmp_path / "run") == history(in_memory)


class Begun:
    """A process over handles, and its state at the start of a run with 3 clients."""

    def __init__(self, process, folder):
        self.process, self.files = over_handles(process), ClientFiles(str(folder))
        self.plain = process
        self.state = start(process, 3, Settings(2, 7), lambda state: state, self.files)
        (self.folder,) = pathlib.Path(folder).glob("run-*")

    def path(self, client, version, part="data-00000-of-00001"):
        return self.folder / f"client-{client:04d}" / f"state-{version:06d}.{part}"

    def begin(self):
        nothing = OrderedDict(rows=np.zeros((1, 6), "f"), keys=[np.zeros(2, "i")] * 3, count=[np.int32(0)] * 3)
        handles = [self.state.store[client] for client in range(3)]
        return self.process.begin_task(self.state.server, handles, nothing)


@pytest.fixture
def begun(process, tmp_path):
    return Begun(process, tmp_path)


def test_a_call_made_again_reads_and_writes_the_same(begun):
    def sums():
        return [hashlib.sha256(begun.path(client, 1).read_bytes()).hexdigest() for client in range(3)]

    first = begun.begin()
    written = sums()
    assert begun.begin() == first
    assert sums() == written
    assert [int(one["version"]) for one in first] == [1, 1, 1]
    assert [int(begun.state.store[client]["version"]) for client in range(3)] == [0, 0, 0]  # until it is told


def test_a_state_is_what_the_process_made(begun):
    expected = first_state(begun.plain, 3, Settings(2, 7)).store
    for client in range(3):
        found = read_state(begun.state.store[client])
        assert sorted(found) == sorted(expected[client])
        for name, value in found.items():
            assert value.dtype == expected[client][name].dtype
            np.testing.assert_array_equal(value, expected[client][name])


def test_a_secret_is_drawn_once_and_stays_with_its_client(tiny, tff_context, tmp_path):
    class Secretive(tiny.TinyWork):
        state_type = OrderedDict(tiny.TinyWork.state_type, secret=tff.TensorType(np.int32, [2]))

        def initialize_client(self, shared, plan, key):
            return {**super().initialize_client(shared, plan, key), "secret": np.zeros(2, np.int32)}

    begun = Begun(tiny.build_process(Secretive()), tmp_path)
    assert "secret" not in begun.state.store[0]
    drawn = {tuple(read_state(begun.state.store[client])["secret"]) for client in range(3)}
    assert len(drawn - {(0, 0)}) == 3


def test_damaged_files_are_named_with_their_client(begun):
    def wrong(match):
        with pytest.raises(RunError, match=match) as caught:
            begun.files.check(begun.process, begun.state.store)
        assert "\n" not in str(caught.value)
        assert str(begun.path(1, 0, "")).rstrip(".") in str(caught.value)
        with pytest.raises(RunError):
            begun.begin()

    path, index = begun.path(1, 0), begun.path(1, 0, "index")
    content, begin = path.read_bytes(), "client 1: cannot read version 0 of its state at .*: "
    path.write_bytes(content[:20])
    wrong(begin + "Read less bytes")
    path.write_bytes(content[:8] + bytes([content[8] ^ 1]) + content[9:])
    wrong(begin + ".*Checksum does not match")
    for old, new in ((begun.path(2, 0), path), (begun.path(2, 0, "index"), index)):
        new.write_bytes(old.read_bytes())
    wrong(begin + ".* is of another client or version")
    index.unlink()
    wrong(begin + ".*Failed to find any matching files")
    with pytest.raises(RunError, match="client 1: cannot read its state at "):
        read_state(begun.state.store[1])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_what_is_no_regular_file_is_named_with_its_client_at_once(begun, make, ending):
    path = begun.path(1, 0, ending)
    path.unlink()
    make(path)
    for read in (
        lambda: begun.files.check(begun.process, begun.state.store),
        lambda: begun.files.read(begun.state.store),
    ):
        with pytest.raises(RunError, match=f"client 1: {path} is no regular file"):
            read()


@pytest.mark.parametrize("name", ["", "..", "run-1/../..", "etc", "run-0123456789", "run-0123456\n"])
def test_a_handle_of_a_checkpoint_names_the_folder_of_a_run(begun, name):
    begun.state.store.merge([1], [{"directory": np.array(f"/somewhere/{name}")}])
    with pytest.raises(RunError, match="client 1: .* is no folder of a run"):
        begun.files.move(begun.state.store)


def test_a_run_says_whose_file_it_was(tiny, process, tmp_path):
    class Damage(StopAfter):
        def report(self, event):
            for path in tmp_path.glob("clients/run-*/client-0002/state-*"):
                path.unlink()

    files = ClientFiles(str(tmp_path / "clients"))
    with pytest.raises(RunError, match="client 2: cannot read version 2 of its state at "):
        tiny.run(process, tmp_path / "run", reporters=[Damage(1)], client_files=files)
    with pytest.raises(RunError, match="client 2: cannot read version 2 of its state at "):
        tiny.run(process, tmp_path / "run", resume=True, client_files=files)


def test_folders_that_cannot_be_used(tiny, process, tmp_path):
    with pytest.raises(InputError, match="absolute path"):
        ClientFiles("clients")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write client states to .*file/clients: .*is not a directory"):
        tiny.run(process, client_files=ClientFiles(str(tmp_path / "file" / "clients")))


def test_a_run_in_memory_is_not_gone_on_with_in_files(tiny, process, in_memory, tmp_path):
    with pytest.raises(RunError, match="client_store is not set there and 'files' here"):
        tiny.run(process, in_memory, clients_per_round=2, resume=True, client_files=ClientFiles(str(tmp_path)))


def test_a_view_for_numpy_alone_is_an_error(process):
    def numpy_view(state, task):
        past = task < int(state["count"])
        return OrderedDict(base=state["base"], adaptive=state["past"][task] if past else state["adaptive"])

    with pytest.raises(ContractError, match="task_view: has to work on tensors"):
        over_handles(dataclasses.replace(process, task_view=numpy_view))


HANDLE = {"directory": "str", "client": "int32", "version": "int32"}


@pytest.fixture(scope="module", params=["tiny", pytest.param("fedseit", marks=pytest.mark.slow)])
def both(request, tiny, tff_context):
    """A process, and the same over handles."""
    if request.param == "tiny":
        process = tiny.build_process()
    else:
        import small

        process = build_fedseit(small.config(), num_foreign=2, training=small.training())
    return process, over_handles(process)


def under(place, names):
    return {f"{place}/{name}": kind for name, kind in names.items()}


def test_what_computations_take_from_and_give_to_clients(both):
    plain, process = both
    metrics = leaves(plain.next.type_signature.result[2])
    assert all(kind in ("int32", "float32") for name, kind in metrics.items() if name != "refused")  # scalars
    knowledge = {"knowledge": f"float32[{plain.knowledge_size}]", "refused": "str"}
    state = entries(plain.client_state_type)
    shown = {"attention": str(state["attention"])} if "attention" in state else {}
    incoming = {"2/keys": "int32[2]", "2/count": "int32"}  # which rows of the knowledge base are its own
    raw = tensors(plain.prepare.type_signature.parameter[3].member, "3")
    expected = {
        "initialize_clients": ({"1/key": "int32[2]", **under("1/handle", HANDLE)}, HANDLE),
        "begin_task": ({**under("1", HANDLE), **incoming}, {"version": "int32"}),
        "prepare": (
            {**under("1", HANDLE), **incoming, **raw, "3/task": "int32", "3/split": "int32"},
            {"count": "int32"},
        ),
        "next": ({**under("1", HANDLE), "2/task": "int32"}, {"1/version": "int32", **under("2", metrics)}),
        "end_task": (
            {**under("1", HANDLE), "2/task": "int32"},
            {"0/version": "int32", **under("1", {**knowledge, **shown})},
        ),
        "evaluate": (
            {**under("1", HANDLE), "1/task": "int32", "2/task": "int32"},
            leaves(plain.evaluate.type_signature.result),
        ),
        "check": (under("0", HANDLE), {"": "int32"}),
    }
    for name, (taken, given) in expected.items():
        kind = getattr(process, name).type_signature
        assert leaves(tff.to_type((kind.parameter,)) if name == "check" else kind.parameter) == taken, name
        assert leaves(kind.result) == given, name


@pytest.mark.slow
def test_what_is_aggregated_is_what_the_method_declares(both):
    plain, process = both
    for name in ("next", "end_task"):
        assert ways_out(getattr(process, name)) == ways_out(getattr(plain, name)), name
    assert ways_out(process.next)


def test_handles_are_of_the_size_of_a_path(both):
    kinds = entries(both[1].client_state_type)
    assert set(kinds) == set(HANDLE)
    assert all(kind.shape == () for kind in kinds.values())
    assert kinds["directory"].dtype == np.str_
