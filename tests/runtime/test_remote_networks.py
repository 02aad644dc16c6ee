"""Two workers in two networks, each with an address of its own; needs root, and skips without."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess

import numpy as np
import pytest
import tensorflow_federated as tff
from command_line import small_vectors
from serving import Accident, Served, assert_same_results, children, events, is_gone_soon
from slow_work import ONE, slow_square

from tffcl import errors, runtime

_DOCS = pathlib.Path(__file__).parents[2] / "docs" / "runtime.md"
_PREFIX = f"t{os.getpid() % 100000}"  # an interface's name has at most 15 characters


def _ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True)


def _networks_are_allowed():
    name = f"{_PREFIX}p"
    try:
        made = _ip("netns", "add", name).returncode == 0
    except FileNotFoundError:
        return False
    _ip("netns", "del", name)
    return made


pytestmark = pytest.mark.skipif(not _networks_are_allowed(), reason="no network name spaces here (root, ip)")


def _documented(number, name, cable):
    """The words of the commands in the documentation that make a machine, with names of our own."""
    (block,) = re.findall(r"```sh\nfor n in 1 2; do\n(.*?)done\n```", _DOCS.read_text(), re.DOTALL)
    text = block.replace("machine$n", name).replace("cable$n", cable).replace("$n", str(number))
    return [line.rstrip(" &").split() for line in text.strip().split("\n")]


class Machine:
    """A network name space with one cable to this one, and a `tffcl worker` in it."""

    def __init__(self, number):
        self.name, self.cable = f"{_PREFIX}n{number}", f"{_PREFIX}c{number}"
        self.address = f"10.213.{number}.2:9000"
        *steps, start = _documented(number, self.name, self.cable)
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            assert done.returncode == 0, (step, done.stderr)
        place = start.index("tffcl")
        assert start[place : place + 2] == ["tffcl", "worker"]
        self.served = Served(*start[place + 2 :], before=tuple(start[:place]))
        assert self.served.address == self.address

    def cut(self):
        """As when somebody pulls the cable: no packet comes, and none is refused."""
        assert _ip("link", "set", self.cable, "down").returncode == 0

    def kill(self):
        self.served.kill()

    def close(self):
        self.served.close()
        assert is_gone_soon(self.served.worker_pid)
        _ip("link", "del", self.cable)
        _ip("netns", "del", self.name)


@pytest.fixture(name="first", scope="module")
def _first():
    """A machine that nothing happens to."""
    with contextlib.closing(Machine(1)) as machine:
        yield machine


@pytest.fixture(name="machines")
def _machines(first):
    with contextlib.closing(Machine(2)) as second:
        yield first, second


@tff.federated_computation(tff.FederatedType(ONE, tff.CLIENTS))
def _work(x):
    return tff.federated_sum(tff.federated_map(slow_square, x))


@tff.federated_computation(tff.FederatedType(ONE, tff.CLIENTS))
def _quick(x):
    return tff.federated_sum(x)


CLIENTS = [np.array([n], np.float32) for n in (1, 2, 3, 4)]


@pytest.mark.slow
def test_one_of_two_machines_is_cut_off_in_mid_round(machines):
    addresses = [machine.address for machine in machines]
    with runtime.remote(addresses, patience=5.0) as entered:
        assert _quick(CLIENTS) == [10]
        with Accident(addresses[1], machines[1].cut):
            assert _work(CLIENTS) == [30]
        assert [event["worker"] for event in entered.events] == [addresses[1]]
        assert _quick(CLIENTS) == [10]


@pytest.mark.slow
def test_a_machine_that_was_cut_off_before_is_one_clear_line(machines, monkeypatch):
    from tffcl.runtime import worker_runtimes

    monkeypatch.setattr(worker_runtimes, "_START_SECONDS", 2.0)
    machines[1].cut()
    with pytest.raises(errors.RunError, match=r"no worker answers at 10\.213\.2\.2:9000"):
        runtime.remote([machine.address for machine in machines])


@pytest.fixture(name="fedseit")
def _fedseit(run, built_once, no_plots):
    """`tffcl run fedseit` in this process, for flags and a folder."""
    return lambda *args, folder: run("run", "fedseit", *args, cwd=folder)


@pytest.mark.slow
def test_fedseit_over_two_machines(machines, fedseit, tmp_path):
    """Over both it comes to what it comes to over one, though one of them is killed in mid-round."""
    before, vectors = children(), small_vectors(tmp_path)
    short = (
        "--output-dir", "run", "--data", "sample", "--embeddings", vectors, "--num-clients", "2", "--num-tasks", "2",
        "--num-rounds", "2", "--num-epochs", "10", "--patience", "0", "--evaluate-every", "task",
    )  # fmt: skip

    def start(name, *over):
        folder = tmp_path / name
        folder.mkdir()
        workers = ",".join(machine.address for machine in over)
        done = fedseit(*short, "--runtime", "remote", "--workers", workers, folder=folder)
        assert done.returncode == 0, done.stderr
        return folder / "run"

    one = start("one", machines[0])
    history = tmp_path / "both" / "run" / "history.jsonl"
    with Accident(machines[1].address, machines[1].kill, history, 1):
        both = start("both", *machines)
    assert_same_results(both, one)
    lines = events(history)
    assert "worker_failures" not in lines[0]  # a round of both
    lost = [failure["worker"] for line in lines for failure in line.get("worker_failures", [])]
    assert lost == [machines[1].address]
    assert children() <= before
