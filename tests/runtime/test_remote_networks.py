"""Two workers in two networks, each with an address of its own; needs root, and skips without."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import errors, runtime

_PROGRAM = [sys.executable, "-c", "from tffcl.cli import main; main()"]
_ONE = tff.TensorType(np.float32, [1])
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


class Machine:
    """A network name space with one cable to this one, and a `tffcl worker` in it."""

    def __init__(self, number):
        self.name, self.cable = f"{_PREFIX}n{number}", f"{_PREFIX}c{number}"
        self.host, self._here = f"10.213.{number}.2", f"10.213.{number}.1/24"
        self.address = f"{self.host}:9000"
        for step in (
            f"netns add {self.name}",
            f"link add {self.cable} type veth peer name eth0 netns {self.name}",
            f"addr add {self._here} dev {self.cable}",
            f"link set {self.cable} up",
            f"-n {self.name} addr add {self.host}/24 dev eth0",
            f"-n {self.name} link set eth0 up",
            f"-n {self.name} link set lo up",
        ):
            done = _ip(*step.split())
            assert done.returncode == 0, (step, done.stderr)
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *_PROGRAM, "worker", "--host", self.host]
            + ["--port", "9000", "--threads", "1"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in self.process.stderr:
            if line.startswith("ready"):
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def cut(self):
        """As when somebody pulls the cable: no packet comes, and none is refused."""
        assert _ip("link", "set", self.cable, "down").returncode == 0

    def kill(self):
        self.process.kill()

    def close(self):
        self.process.kill()
        self.process.wait(10)
        _ip("link", "del", self.cable)
        _ip("netns", "del", self.name)


@pytest.fixture(name="machines")
def _machines():
    with contextlib.ExitStack() as started:
        machines = []
        for number in (1, 2):
            machines.append(Machine(number))
            started.callback(machines[-1].close)
        yield machines


@tff.tensorflow.computation(_ONE)
def _slow_square(x):
    def step(n, total):
        a = tf.fill([300, 300], 1e-3) + tf.cast(n, tf.float32) * 1e-9
        for _ in range(8):
            a = a @ a
        return n + 1, total + tf.reduce_sum(a)

    return x * x + 0.0 * tf.while_loop(lambda n, _: n < 200 * tf.size(x), step, (0, 0.0))[1]


@tff.federated_computation(tff.FederatedType(_ONE, tff.CLIENTS))
def _work(x):
    return tff.federated_sum(tff.federated_map(_slow_square, x))


@tff.federated_computation(tff.FederatedType(_ONE, tff.CLIENTS))
def _quick(x):
    return tff.federated_sum(x)


CLIENTS = [np.array([n], np.float32) for n in (1, 2, 3, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("accident", ["kill", "cut"])
def test_one_of_two_machines_is_lost_in_mid_round(machines, accident):
    addresses = [machine.address for machine in machines]
    with runtime.remote(addresses, patience=2.0) as entered:
        assert _quick(CLIENTS) == [10]
        timer = threading.Timer(0.5, getattr(machines[1], accident))
        timer.start()
        start = time.monotonic()
        assert _work(CLIENTS) == [30]
        assert time.monotonic() - start < 60
        assert [event["worker"] for event in entered.events] == [addresses[1]]
        assert _quick(CLIENTS) == [10]
    timer.join()


@pytest.mark.slow
def test_a_machine_that_was_cut_off_before_is_one_clear_line(machines, monkeypatch):
    from tffcl.runtime import remote_runtime

    monkeypatch.setattr(remote_runtime, "_START_SECONDS", 2.0)
    machines[1].cut()
    with pytest.raises(errors.RunError, match=r"no worker answers at 10\.213\.2\.2:9000"):
        runtime.remote([machine.address for machine in machines])
