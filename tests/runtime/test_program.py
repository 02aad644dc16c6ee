"""A program of its own that takes one runtime after another: devices, Ctrl-C, and how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
from serving import PATIENCE, is_running

pytestmark = pytest.mark.slow

_SCRIPT = """
import os, pathlib, signal, threading
from tffcl import runtime
runtime.quiet_logs()
import numpy as np, tensorflow as tf, tensorflow_federated as tff
from tffcl.runtime import values

cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 3)
ran_on = []
plain = values.device_of
values.device_of = lambda value: ran_on.append(plain(value)) or ran_on[-1]

@tff.tensorflow.computation(tff.SequenceType(np.float32))
def total(x):
    seen = tf.Variable(0.0)
    add = tf.function(lambda: seen.assign(x.reduce(0.0, lambda t, e: t + e)))
    with tf.control_dependencies([add()]):
        return seen.read_value()

@tff.federated_computation(tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS))
def compute(x):
    return tff.federated_map(total, x), tff.federated_sum(tff.federated_map(total, x))

for device in (None, "/CPU:0", "CPU:1", "/device:CPU:2"):
    with runtime.in_process(device):
        each, all = compute([[1.0, 2.0], [3.0]])
        assert each == [3.0, 3.0] and all == 6.0, (each, all)
        print(ran_on[-1][-5:], end=" ")
print()

signal.signal(signal.SIGINT, signal.default_int_handler)
@tff.tensorflow.computation(np.int32)
def endless(x):
    return tf.while_loop(lambda y: y > 0, lambda y: (tf.maximum(y - 1, 1),), (x,))[0]
compute = tff.federated_computation(
    lambda x: tff.federated_map(endless, x), tff.FederatedType(np.int32, tff.CLIENTS))
with runtime.in_process():
    compute([0])
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        compute([5, 5, 5])
    except KeyboardInterrupt:
        print("interrupted", *compute([0]))

five = tff.tensorflow.computation(lambda: tf.constant(5))
runtime.set_in_process()
print(five())
print(*pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split(), "none")
local = runtime.set_local()
print(five(), local.worker.pid)
"""


@pytest.fixture(name="ended", scope="module")
def _ended():
    """How it ended: one import of TFF for all tests."""
    return subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture(name="lines")
def _lines(ended):
    return ended.stdout.split("\n")


def test_each_device_can_be_chosen(lines):
    assert lines[0].split() == ["CPU:0", "CPU:0", "CPU:1", "CPU:2"]


def test_ctrl_c_ends_a_client_that_would_run_for_ever(lines):
    assert lines[1] == "interrupted 0"


def test_the_in_process_context_is_set_and_has_no_child(lines):
    assert lines[2:4] == ["5", "none"]


def test_the_context_of_a_worker_is_set_and_the_worker_ends_with_the_program(lines):
    result, worker_pid = lines[4].split()
    assert result == "5"
    assert not is_running(int(worker_pid))


def test_it_ends_quietly(ended, lines):
    assert lines[5:] == [""]
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_program_that_enters_no_runtime_ends_in_silence():
    """What TFF makes when it is imported is let go of in time: else Python tells of an exception in a destructor."""
    code = "from tffcl.runtime import quiet_logs; quiet_logs(); from tffcl import models; print(models.MADE.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "MADE\n", "")
